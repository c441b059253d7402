#include "driver.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "error.h"
#include "processor.h"

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

namespace {

// The level that belongs to one core: a share of the last level is worth nothing on a machine shared with others.
uint64_t private_cache_size() {
  const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return size > 0 ? static_cast<uint64_t>(size) : uint64_t{1} << 20;
}

}  // namespace

int32_t available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  // More cores than the fixed-size set can hold.
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? static_cast<int32_t>(online) : 1;
}

mtia_device_properties describe_device(uint64_t memory) {
  mtia_device_properties properties{};
  std::snprintf(properties.name, sizeof(properties.name), "MTIA software device (%.38s)", processor_name().c_str());
  std::snprintf(properties.architecture, sizeof(properties.architecture), "%s", architecture());
  properties.total_memory = memory;
  properties.l2_cache_size = private_cache_size();
  properties.multi_processor_count = available_cores();
  properties.warp_size = 32;
  properties.capability_major = 1;
  return properties;
}

Stream* Device::create_stream(int32_t priority, void* tag) {
  priority = std::clamp(priority, kHighestPriority, kLowestPriority);
  const std::lock_guard lock(mutex_);
  const auto idle =
      std::find_if(retired_.begin(), retired_.end(), [](const Stream* stream) { return stream->is_idle(); });
  if (idle != retired_.end()) {
    Stream* stream = *idle;
    retired_.erase(idle);
    stream->reuse(priority, tag);
    return stream;
  }
  auto stream = std::make_unique<Stream>(*this, static_cast<int32_t>(streams_.size()), priority, tag);
  streams_.push_back(stream.get());
  return stream.release();  // leaked, see Stream
}

void Device::retire_stream(Stream* stream) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(stream);
}

mtia_status Device::synchronize() {
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(mutex_);
    streams = streams_;
  }
  // All positions first: the call waits for nothing that is submitted while it waits.
  std::vector<Executor::Position> positions;
  positions.reserve(streams.size());
  for (Stream* stream : streams) positions.push_back(stream->position());
  for (size_t i = 0; i < streams.size(); ++i) streams[i]->wait(positions[i]);

  mtia_status status = MTIA_SUCCESS;
  for (Stream* stream : streams) {
    const std::optional<WorkFailure> failure = stream->take_failure();
    if (failure && status == MTIA_SUCCESS) status = Stream::report(*failure);
  }
  return status;
}

}  // namespace torch_mtia::runtime::host
