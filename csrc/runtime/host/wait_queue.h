// Threads that sleep until another one wakes all of them, as with a condition variable.
//
// Note [Woken on the core of the waker]
// A thread that waits for a stream is woken by one that has nothing to do next. Where every core is taken, because the
// helpers of the last parallel region spin for some 10 ms yet, a futex leaves the woken thread where it slept, behind
// such a helper: up to a time slice, 4 ms where the timer ticks 250 times a second. Writing into a pipe tells the
// kernel that the writer is about to sleep, and it lets the woken thread have that core.
#pragma once

#include <mutex>

namespace torch_mtia::runtime::host {

// All functions are called with the lock of the owner held.
class WaitQueue {
 public:
  // Gives the lock up meanwhile. May also return without having been woken.
  void wait(std::unique_lock<std::mutex>& lock) noexcept;
  void wake_all() noexcept;

 private:
  struct Sleeper;
  Sleeper* first_ = nullptr;
};

}  // namespace torch_mtia::runtime::host
