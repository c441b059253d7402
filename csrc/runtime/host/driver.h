// What `initialize` sets up: the software devices and their memory. A device is what it says about itself, its streams,
// and the rule by which they share the cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../mtia_runtime.h"
#include "memory.h"
#include "stream.h"
#include "work.h"

namespace torch_mtia::runtime::host {

// What a software device says about itself: all fields but struct_size.
mtia_device_properties describe_device(uint64_t memory);

// Cores this process may run on.
int32_t available_cores();

// Leaked, like its streams.
class Device {
 public:
  // A lower number is a higher priority. The cores are scheduled by the operating system, so priority is a hint that
  // this device records and does not use; values outside the range are clamped.
  static constexpr int32_t kLowestPriority = 0;
  static constexpr int32_t kHighestPriority = -1;

  Device(int32_t index, void (*release_threads)(), uint64_t delay_seed)
      : index_(index), release_threads_(release_threads), delay_seed_(delay_seed) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int32_t index() const { return index_; }

  // See mtia_init_params.
  void release_threads() const noexcept {
    if (release_threads_ != nullptr) release_threads_();
  }

  // See mtia_init_params.
  uint64_t delay_seed() const { return delay_seed_; }

  Stream* create_stream(int32_t priority, void* tag);
  // The stream finishes its work and is handed out again later.
  void retire_stream(Stream* stream);

  // Blocks until everything submitted before the call is done, but for streams whose item the caller is inside of.
  // MTIA_ERROR_LAUNCH_FAILED with the message of the first stream's failure; all are cleared.
  mtia_status synchronize();

 private:
  friend class ParallelToken;

  const int32_t index_;
  void (*const release_threads_)();
  const uint64_t delay_seed_;
  std::atomic<bool> parallel_token_{false};
  std::mutex mutex_;
  std::vector<Stream*> streams_;  // all there ever were
  std::vector<Stream*> retired_;
};

// Note [Sharing the cores]
// Each device has one token. An executor that is about to run an item for several threads tries to take it; with the
// token the item is granted the threads it asked for, without it one. So at any moment at most one thread of a device
// opens parallel regions, two busy streams do not compete for the cores with a pool of threads each, and nobody waits:
// the second stream runs its item on its own thread meanwhile. Items that run on a launching thread get one thread.
class ParallelToken {
 public:
  ParallelToken(Device& device, bool wanted) noexcept
      : device_(device), taken_(wanted && !device.parallel_token_.exchange(true, std::memory_order_acquire)) {}
  ~ParallelToken() {
    if (taken_) device_.parallel_token_.store(false, std::memory_order_release);
  }
  ParallelToken(const ParallelToken&) = delete;
  ParallelToken& operator=(const ParallelToken&) = delete;

  bool taken() const { return taken_; }

 private:
  Device& device_;
  const bool taken_;
};

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
