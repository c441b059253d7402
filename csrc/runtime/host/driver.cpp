#include "driver.h"

#include <pthread.h>

#include <limits>
#include <mutex>
#include <string>

#include "error.h"

namespace torch_mtia::runtime::host {
namespace {

constexpr int32_t kMaxDevices = 64;
// Half of the address space of a process.
constexpr uint64_t kMaxMemory = uint64_t{1} << 46;

void check(const mtia_init_params& params) {
  const auto refuse = [](const std::string& message) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "initialize: " + message);
  };
  if (params.num_devices < 1 || params.num_devices > kMaxDevices) {
    refuse("num_devices is " + std::to_string(params.num_devices) + ", it must be from 1 to " +
           std::to_string(kMaxDevices));
  }
  if (params.memory_per_device == 0 ||
      params.memory_per_device > kMaxMemory / static_cast<uint64_t>(params.num_devices)) {
    refuse("memory_per_device is " + std::to_string(params.memory_per_device) + " bytes, it must be from 1 to " +
           format_bytes(kMaxMemory / static_cast<uint64_t>(params.num_devices)));
  }
  if (params.parallel_for == nullptr) refuse("parallel_for is null");
}

}  // namespace

constinit Driver* Driver::instance_ = nullptr;

Driver::Driver(const mtia_init_params& params)
    : memory_(params.num_devices, params.memory_per_device),
      parallelism_{params.parallel_for, available_cores(), params.num_threads} {
  for (int32_t index = 0; index < params.num_devices; ++index)
    devices_.push_back(std::make_unique<Device>(index, params.release_threads, params.delay_seed));
}

void Driver::initialize(const mtia_init_params& params) {
  static constinit std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (instance_ != nullptr) throw Failure(MTIA_ERROR_INVALID_VALUE, "initialize: the driver is initialized already");
  check(params);
  std::unique_ptr<Driver> driver(new Driver(params));
  // The child of a fork has neither the executor threads nor the device's memory.
  if (pthread_atfork(nullptr, nullptr, [] { process_state.fetch_or(kForked, std::memory_order_relaxed); }) != 0) {
    throw std::bad_alloc();
  }
  instance_ = driver.release();  // leaked, see Driver
  process_state.fetch_or(kInitialized | (params.launch_blocking != 0 ? kLaunchBlocking : 0U),
                         std::memory_order_release);
}

void Driver::refuse() {
  if ((process_state.load(std::memory_order_relaxed) & kForked) != 0) {
    throw Failure(MTIA_ERROR_FORKED,
                  "this process was forked from one that uses the device, and cannot use it; start it with the "
                  "multiprocessing start method 'spawn' (or 'forkserver') instead of 'fork'");
  }
  throw Failure(MTIA_ERROR_NOT_INITIALIZED, "the driver is not initialized: call initialize first");
}

Device& Driver::device(int32_t index) {
  if (index < 0 || index >= num_devices()) {
    throw Failure(MTIA_ERROR_INVALID_DEVICE, "there is no device " + std::to_string(index) + ": the driver has " +
                                                 std::to_string(num_devices()) + ", numbered from 0");
  }
  return *devices_[static_cast<size_t>(index)];
}

}  // namespace torch_mtia::runtime::host
