#if defined(__aarch64__)

#include "../mtia_runtime.h"
#include "processor.h"

namespace torch_mtia::runtime::host {

uint64_t cpu_features() {
  return MTIA_CPU_AARCH64;
}

// These processors have numbers, and no names.
std::string processor_name() {
  return "aarch64";
}

const char* architecture() {
  return "aarch64";
}

}  // namespace torch_mtia::runtime::host

#endif
