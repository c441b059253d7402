// The work that the calling thread is inside of, where that work is code of PyTorch's: fall backs, host functions and
// collectives. No PyTorch.
//
// Running work never waits for streams: not for its own, because that would never end, and not for others, because they
// may wait for this one. See Note [Memory of running work] in BlockAllocator.h.
#pragma once

#include <cstdint>

#include "../processor/initial_exec.h"

namespace torch_mtia::core {

class Stream;

// For the duration of a scope the calling thread is inside an item of `stream`. Of an item that may allocate device
// memory a window is open; collectives allocate none.
class RunningWork {
 public:
  // `host_function`: its number, of the observer (Observer.h). 0: it has none.
  explicit RunningWork(const Stream& stream, uint64_t host_function = 0) noexcept
      : stream_(&stream), host_function_(host_function), outer_(innermost) {
    innermost = this;
  }
  ~RunningWork() { innermost = outer_; }
  RunningWork(const RunningWork&) = delete;
  RunningWork& operator=(const RunningWork&) = delete;

  static bool on_this_thread() noexcept { return innermost != nullptr; }
  // What the calling thread is inside of directly; null: nothing.
  static const RunningWork* current() noexcept { return innermost; }
  const Stream& stream() const { return *stream_; }
  uint64_t host_function() const { return host_function_; }
  // Directly, or through an item of another stream.
  static bool on_this_thread(const Stream* stream) noexcept {
    const RunningWork* work = innermost;
    while (work != nullptr && work->stream_ != stream) work = work->outer_;
    return work != nullptr;
  }

 private:
  INITIAL_EXEC static constinit thread_local const RunningWork* innermost;

  const Stream* const stream_;
  const uint64_t host_function_;
  const RunningWork* const outer_;
};

}  // namespace torch_mtia::core
