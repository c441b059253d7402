#include "cpu_features.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {
namespace {

// Linux gives a process the registers of AMX only on request.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Feature {
  uint64_t bit;
  const char* name;
  bool (*is_present)();
};

constexpr std::array features{
    Feature{MTIA_CPU_AVX2_FMA, "avx2+fma",
            [] { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }},
    Feature{MTIA_CPU_AVX512_SKX, "avx512f+bw+dq+vl+cd",
            [] {
              return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                     __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                     __builtin_cpu_supports("avx512cd") != 0;
            }},
    Feature{MTIA_CPU_AVX512_BF16, "avx512-bf16", [] { return __builtin_cpu_supports("avx512bf16") != 0; }},
    Feature{MTIA_CPU_AVX512_VNNI, "avx512-vnni", [] { return __builtin_cpu_supports("avx512vnni") != 0; }},
    Feature{MTIA_CPU_AVX512_FP16, "avx512-fp16", [] { return __builtin_cpu_supports("avx512fp16") != 0; }},
    Feature{MTIA_CPU_AMX_BF16, "amx-bf16", [] { return __builtin_cpu_supports("amx-bf16") != 0 && request_amx(); }},
    Feature{MTIA_CPU_AMX_INT8, "amx-int8", [] { return __builtin_cpu_supports("amx-int8") != 0 && request_amx(); }},
};

}  // namespace

uint64_t cpu_features() {
  static const uint64_t present = [] {
    __builtin_cpu_init();
    uint64_t bits = 0;
    for (const Feature& feature : features) {
      if (feature.is_present()) bits |= feature.bit;
    }
    return bits;
  }();
  return present;
}

std::string cpu_feature_names(uint64_t bits) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (const Feature& feature : features) {
    if ((bits & feature.bit) != 0) add(feature.name);
    bits &= ~feature.bit;
  }
  if (bits != 0) add("unknown features " + std::to_string(bits));
  return names;
}

}  // namespace torch_mtia::runtime::host
