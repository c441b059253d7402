// Accesses of the host's own operators to pinned memory, for the observer (core/Hooks.h): copies that the program
// has not waited for may be under way in it.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

// Whether the observer sees operators on CPU tensors in pinned memory, on any thread.
void watch_host_accesses(bool watch);

// Notifies the observer that the host reads a tensor itself, or may do so from now on: a tensor of the device, or a CPU
// tensor in pinned memory. Others are ignored.
void notify_host_read(const char* name, const at::Tensor& tensor);

}  // namespace torch_mtia
