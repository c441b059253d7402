// Which of the MTIA_CPU_* features this machine has.
#pragma once

#include <cstdint>
#include <string>

namespace torch_mtia::runtime::host {

// What the processor offers and the operating system lets this process use.
uint64_t cpu_features();

// "avx2+fma, avx512-bf16"; bits without a name as a number.
std::string cpu_feature_names(uint64_t features);

}  // namespace torch_mtia::runtime::host
