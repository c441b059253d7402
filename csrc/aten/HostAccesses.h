// What the host's own operators read and write of pinned memory, for the observer (core/Observer.h): copies that nobody
// has waited for may be under way in it.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

// Whether the observer is told of operators on tensors of the CPU in pinned memory, on any thread.
void watch_host_accesses(bool watch);

// Tells the observer that the host reads a tensor by itself, or may do so from now on: one of the device, or one of the
// CPU in pinned memory. Of others it is not told.
void tell_host_read(const char* name, const at::Tensor& tensor);

}  // namespace torch_mtia
