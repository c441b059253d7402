#include "wait_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace torch_mtia::runtime::host {
namespace {

// Of one thread; empty when nobody has written to it. Only numbers, so it is there until the thread has ended.
struct Pipe {
  int read_end = -1;  // none: for want of file descriptors, or the thread is about to end
  int write_end = -1;

  bool read() noexcept {
    char byte;
    ssize_t count;
    do count = ::read(read_end, &byte, 1);
    while (count < 0 && errno == EINTR);
    return count == 1;
  }
  void write() noexcept {
    const char byte = 0;
    while (::write(write_end, &byte, 1) < 0 && errno == EINTR) {
    }
  }
};

constinit thread_local Pipe pipe_of_thread;

// Destructors of the thread's other variables may still wait, when the descriptors are another file's already.
struct OpenPipe {
  OpenPipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0) pipe_of_thread = {ends[0], ends[1]};
  }
  ~OpenPipe() {
    const Pipe pipe = std::exchange(pipe_of_thread, Pipe{});
    if (pipe.read_end < 0) return;
    close(pipe.read_end);
    close(pipe.write_end);
  }
  OpenPipe(const OpenPipe&) = delete;
  OpenPipe& operator=(const OpenPipe&) = delete;
};

}  // namespace

struct WaitQueue::Sleeper {
  Pipe& pipe;
  Sleeper* next;
  bool is_woken = false;
};

void WaitQueue::wait(std::unique_lock<std::mutex>& lock) noexcept {
  thread_local const OpenPipe open;
  Sleeper self{pipe_of_thread, first_};
  first_ = &self;
  lock.unlock();
  // Without a pipe, for want of file descriptors, the caller looks again and again.
  if (!self.pipe.read()) std::this_thread::sleep_for(std::chrono::microseconds(50));
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
