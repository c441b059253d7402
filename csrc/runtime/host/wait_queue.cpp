#include "wait_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace torch_mtia::runtime::host {
namespace {

// Of one thread; empty when nobody has written to it.
class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~Pipe() {
    if (ends_[0] < 0) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  bool read() noexcept {
    char byte;
    ssize_t count;
    do count = ::read(ends_[0], &byte, 1);
    while (count < 0 && errno == EINTR);
    return count == 1;
  }
  void write() noexcept {
    const char byte = 0;
    while (::write(ends_[1], &byte, 1) < 0 && errno == EINTR) {
    }
  }

 private:
  int ends_[2];
};

}  // namespace

struct WaitQueue::Sleeper {
  Pipe& pipe;
  Sleeper* next;
  bool is_woken = false;
};

void WaitQueue::wait(std::unique_lock<std::mutex>& lock) noexcept {
  thread_local Pipe pipe;
  Sleeper self{pipe, first_};
  first_ = &self;
  lock.unlock();
  // Without a pipe, for want of file descriptors, the caller looks again and again.
  if (!pipe.read()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  lock.lock();
  if (self.is_woken) return;
  Sleeper** link = &first_;
  while (*link != &self) link = &(*link)->next;
  *link = self.next;
}

void WaitQueue::wake_all() noexcept {
  for (Sleeper* sleeper = first_; sleeper != nullptr; sleeper = sleeper->next) {
    sleeper->is_woken = true;
    sleeper->pipe.write();
  }
  first_ = nullptr;
}

}  // namespace torch_mtia::runtime::host
