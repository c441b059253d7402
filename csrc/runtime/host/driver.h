// What `initialize` sets up: the devices and their memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "../mtia_runtime.h"
#include "device.h"
#include "memory.h"
#include "work.h"

namespace torch_mtia::runtime::host {

enum ProcessState : uint32_t {
  kInitialized = 1,
  kForked = 2,          // this is a child of the process that initialized: its threads and memory are not here
  kLaunchBlocking = 4,  // every launch returns only when its work is done
};

// What holds for the process as a whole, in one word that every call reads first.
inline constinit std::atomic<uint32_t> process_state{0};

// Leaked: executor threads and callers use it until the process ends.
class Driver {
 public:
  // Throws Failure if the parameters are wrong, if it was called before, or if memory cannot be reserved.
  static void initialize(const mtia_init_params& params);

  // The driver in a state to serve a call. Throws Failure: NOT_INITIALIZED, FORKED.
  static Driver& get() {
    if ((process_state.load(std::memory_order_acquire) & (kInitialized | kForked)) != kInitialized) refuse();
    return *instance_;
  }

  int32_t num_devices() const { return static_cast<int32_t>(devices_.size()); }
  Device& device(int32_t index);  // throws Failure: INVALID_DEVICE
  Memory& memory() { return memory_; }
  const Parallelism& parallelism() const { return parallelism_; }

 private:
  explicit Driver(const mtia_init_params& params);
  [[noreturn]] static void refuse();

  static constinit Driver* instance_;

  Memory memory_;
  const Parallelism parallelism_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace torch_mtia::runtime::host
