#include "device.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "processor.h"

namespace torch_mtia::runtime::host {
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
