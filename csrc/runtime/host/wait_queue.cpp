#include "wait_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace torch_mtia::runtime::host {
namespace {

// Of one thread; empty when nobody has written to it. Has no destructor, so it is there until the thread has ended.
class Pipe {
 public:
  // Programs close files that they do not know, and the numbers are other files' then.
  void open() noexcept {
    if (is_whole()) return;
    close_ours();
    int ends[2];
    struct stat file;
    if (is_over_ || pipe2(ends, O_CLOEXEC) != 0) return forget();
    fstat(ends[0], &file);
    read_end_ = ends[0];
    write_end_ = ends[1];
    number_ = file.st_ino;
  }
  // For good: destructors of the thread's other variables may still wait.
  void close() noexcept {
    close_ours();
    forget();
    is_over_ = true;
  }

  // False without a pipe: for want of file descriptors, at the end of the thread, or because the program has closed it.
  // That wakes nobody while a forked child has the pipe, too, so the thread looks from time to time.
  bool read() noexcept {
    constexpr int kLookAgain = 100;  // milliseconds
    while (is_whole()) {
      pollfd readable{read_end_, POLLIN, 0};
      if (poll(&readable, 1, kLookAgain) <= 0) continue;
      char byte;
      return is_ours(read_end_) && ::read(read_end_, &byte, 1) == 1;
    }
    return false;
  }
  // Nothing without the pipe: its number may be another file's by now.
  void write() noexcept {
    const char byte = 0;
    while (is_ours(write_end_) && ::write(write_end_, &byte, 1) < 0 && errno == EINTR) {
    }
  }

 private:
  bool is_whole() const noexcept { return is_ours(read_end_) && is_ours(write_end_); }
  bool is_ours(int end) const noexcept {
    struct stat file;
    return end >= 0 && fstat(end, &file) == 0 && S_ISFIFO(file.st_mode) && file.st_ino == number_;
  }
  void close_ours() noexcept {
    for (const int end : {read_end_, write_end_}) {
      if (is_ours(end)) ::close(end);
    }
  }
  void forget() noexcept { read_end_ = write_end_ = -1; }

  int read_end_ = -1;
  int write_end_ = -1;
  ino_t number_ = 0;
  bool is_over_ = false;
};

constinit thread_local Pipe pipe_of_thread;

struct ClosesPipe {
  ~ClosesPipe() { pipe_of_thread.close(); }
};

}  // namespace

struct WaitQueue::Sleeper {
  Pipe& pipe;
  Sleeper* next;
  bool is_woken = false;
};

void WaitQueue::wait(std::unique_lock<std::mutex>& lock) noexcept {
  [[maybe_unused]] thread_local const ClosesPipe at_end_of_thread;
  pipe_of_thread.open();
  Sleeper self{pipe_of_thread, first_};
  first_ = &self;
  lock.unlock();
  // Without a pipe the caller looks again and again.
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
