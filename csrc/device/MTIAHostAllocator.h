// Pinned host memory: at::HostAllocator of device type mtia. The counterpart of ATen/cuda/CachingHostAllocator.h.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"  // of a constant that this header's users do not share with torch
#include <ATen/core/CachingHostAllocator.h>
#pragma GCC diagnostic pop
#include <ATen/core/Tensor.h>

namespace torch_mtia {

at::HostAllocator& host_allocator();

// Whether the address lies in memory that the allocator handed out or keeps.
bool is_pinned(const void* address);

// The copy of `tensor`, which lives on the CPU, has been submitted to the stream: its memory is not given out again
// before the stream gets there.
void record_pinned_use(const at::Tensor& tensor, const c10::Stream& stream);

}  // namespace torch_mtia
