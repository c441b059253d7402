#include "properties.h"

#include <cpuid.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "../mtia_runtime.h"
#include "cpu_features.h"

namespace torch_mtia::runtime::host {
namespace {

// The marketing name of the processor, without surrounding blanks.
std::string processor_name() {
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* part = words.data() + leaf * 4;
    if (__get_cpuid(0x80000002U + leaf, part, part + 1, part + 2, part + 3) == 0) return "x86-64";
  }
  std::array<char, sizeof(words) + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string name(text.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

// The psABI level, and three above its highest: torch_mtia/triton/architecture.py has the same. What the operating
// system does not save at a context switch does not count.
const char* architecture() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  const bool vnni = v4 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16") && !__builtin_cpu_supports("amx-bf16");
  constexpr uint64_t kTiles = MTIA_CPU_AMX_BF16 | MTIA_CPU_AMX_INT8;
  if (vnni && __builtin_cpu_supports("avx512bf16") && (cpu_features() & kTiles) == kTiles) return "x86-64-v4-amx";
  if (bf16) return "x86-64-v4-bf16";
  if (vnni) return "x86-64-v4-vnni";
  return v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "x86-64";
}

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
