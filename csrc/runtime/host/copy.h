// Copies and fills, as work items.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../mtia_runtime.h"
#include "memory.h"
#include "stream.h"

namespace torch_mtia::runtime::host {

// How large copies use the threads they are granted.
struct Parallelism {
  mtia_parallel_for parallel_for = nullptr;
  int32_t num_cores = 1;
  int32_t (*num_threads)() = nullptr;  // see mtia_init_params

  int32_t wanted_threads() const { return num_threads == nullptr ? num_cores : std::min(num_threads(), num_cores); }
};

// The ranges must not overlap. Throws Failure: INVALID_VALUE for an address that does not fit the kind.
mtia_status copy(Stream& stream, const Memory& memory, const Parallelism& parallelism, uint64_t to, uint64_t from,
                 uint64_t size, mtia_copy_kind kind);

mtia_status fill(Stream& stream, const Memory& memory, const Parallelism& parallelism, mtia_device_ptr to,
                 const void* pattern, uint32_t pattern_size, uint64_t count);

}  // namespace torch_mtia::runtime::host
