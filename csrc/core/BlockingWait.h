// What a thread gives up while it waits for the device. No PyTorch.
//
// The functions of this layer that wait do it by themselves. Work that is waited for may want the lock of the
// interpreter above, Python's GIL, and many of PyTorch's hooks are entered with it (torch.mtia.synchronize).
//
// Note [Threads that are kept]
// libgomp keeps a pool of threads for every thread that opens parallel regions. As soon as all pools together have more
// threads than the machine has cores, no thread spins between two regions any more: each region then wakes sleeping
// threads, and one of 20 us takes 100. So a thread that waits for the device gives its pool up, and so does an executor
// that has nothing to do (mtia_init_params.release_threads): whoever computes is then the only one with a pool.
#pragma once

namespace torch_mtia::core {

// The layers above fill both in, once, before the device is used. Without, there is nothing to give up.
struct InterpreterLock {
  void* (*release)() = nullptr;              // null: the calling thread did not hold it
  void (*take_back)(void* state) = nullptr;  // `state`: what release() gave, not null
};
extern constinit InterpreterLock interpreter_lock;
using ReleaseThreads = void (*)();  // they start again when they are needed
extern constinit ReleaseThreads release_threads;

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

// Gives up both. The threads only if the wait will take time: an idle stream is waited for often.
class BlockingWait {
 public:
  explicit BlockingWait(bool takes_time) {
    if (takes_time && release_threads != nullptr) release_threads();
  }

 private:
  const WithoutGil without_gil_;
};

}  // namespace torch_mtia::core
