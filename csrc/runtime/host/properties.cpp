#include "properties.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>

#include "../mtia_runtime.h"
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

}  // namespace torch_mtia::runtime::host
