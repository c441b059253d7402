// Scratch memory for kernels: one block for each thread that runs programs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_mtia::runtime::host {

// At least `size` bytes for the calling thread, aligned to 64, until its next call. The block grows with the largest
// request and is kept until the thread ends, so that its pages stay warm. Null: there is no memory, or size is 0.
std::byte* thread_scratch(uint64_t size) noexcept;

}  // namespace torch_mtia::runtime::host
