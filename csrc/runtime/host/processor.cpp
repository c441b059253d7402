#include "processor.h"

#include <array>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {
namespace {

struct Feature {
  uint64_t bit;
  const char* name;
};

constexpr std::array features{
    Feature{MTIA_CPU_AVX2_FMA, "avx2+fma"},       Feature{MTIA_CPU_AVX512_SKX, "avx512f+bw+dq+vl+cd"},
    Feature{MTIA_CPU_AVX512_BF16, "avx512-bf16"}, Feature{MTIA_CPU_AVX512_VNNI, "avx512-vnni"},
    Feature{MTIA_CPU_AVX512_FP16, "avx512-fp16"}, Feature{MTIA_CPU_AMX_BF16, "amx-bf16"},
    Feature{MTIA_CPU_AMX_INT8, "amx-int8"},       Feature{MTIA_CPU_AARCH64, "aarch64"},
};

}  // namespace

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
