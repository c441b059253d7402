// The lock of the interpreter above, Python's GIL, as far as the lower layers have to know of it: whoever waits for the
// device gives it up, because work that is waited for may want it.
#pragma once

namespace torch_mtia::core {

// The binding layer fills it, once, before the device is used. Without one there is no such lock.
struct InterpreterLock {
  void* (*release)() = nullptr;              // null: the calling thread did not hold it
  void (*take_back)(void* state) = nullptr;  // `state`: what release() gave, not null
};
inline constinit InterpreterLock interpreter_lock{};

// Gives the lock up for the duration of a scope. No other lock may be held at its end.
class WithoutGil {
 public:
  WithoutGil() : state_(interpreter_lock.release == nullptr ? nullptr : interpreter_lock.release()) {}
  ~WithoutGil() {
    if (state_ != nullptr) interpreter_lock.take_back(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

}  // namespace torch_mtia::core
