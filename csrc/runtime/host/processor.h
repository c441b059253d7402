// What this machine's processor is, and which code it can run. There is an implementation for each kind of processor.
#pragma once

#include <cstdint>
#include <string>

namespace torch_mtia::runtime::host {

// Which MTIA_CPU_* the processor offers and the operating system lets this process use.
uint64_t cpu_features();

// The marketing name, without surrounding blanks.
std::string processor_name();

// The highest level that kernels may be compiled for: torch_mtia/triton/architecture.py has the same.
const char* architecture();

}  // namespace torch_mtia::runtime::host
