// What the layers below call in the layers above. No PyTorch.
#pragma once

#include <atomic>
#include <string>

#include "Operands.h"

namespace torch_mtia::core {

class Observer;
class Stream;
struct WorkError;

// Set by the layers above when they are loaded, or when the device is initialized; the atomics at any time. Null: there
// is nothing to call.
struct Hooks {
  // Releases the interpreter's lock, Python's GIL. Returns what reacquire_interpreter_lock takes; null: the calling
  // thread did not hold the lock.
  void* (*release_interpreter_lock)() = nullptr;
  void (*reacquire_interpreter_lock)(void* state) = nullptr;

  // Ends the thread pool of the calling thread, which starts again when it is needed: see Note [Idle thread pools] in
  // Waits.h.
  void (*release_threads)() = nullptr;

  // Returns cached pinned memory to the host, whose memory that of the device may be. Called without locks of the
  // allocator, on any thread, in running work too; must not wait for streams.
  void (*return_host_cache)() = nullptr;

  // Raises an error of work in the terms of the layer above. Without it, the exception of the work is rethrown, and a
  // failure of the driver is a runtime::DriverError.
  void (*raise_error)(const Stream& stream, const WorkError& error) = nullptr;

  // The exception that the interpreter handles on the calling thread, and its message if `text` is not null. Null:
  // none.
  const void* (*handled_exception)(std::string* text) = nullptr;

  // Called once, when the device is initialized: children that are forked later must know.
  void (*on_first_use)() = nullptr;

  // Throws for work that must not be captured.
  std::atomic<void (*)(const Stream& stream, const char* name, OperandList list, const void* work)> check_capture{};

  // An observer lives as long as the process: a thread may be about to call it when it is replaced.
  std::atomic<Observer*> observer{};
};
extern constinit Hooks hooks;

inline Observer* current_observer() {
  return hooks.observer.load(std::memory_order_acquire);
}

}  // namespace torch_mtia::core
