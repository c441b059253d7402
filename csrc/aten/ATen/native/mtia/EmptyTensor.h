// What torchgen's registration for MTIA includes and the PyTorch wheel does not ship: the allocation of outputs.
// The counterpart of ATen/cuda/EmptyTensor.h. Implemented in csrc/aten/TensorFactories.cpp.
#pragma once

#include <ATen/core/TensorBase.h>

namespace at::detail {

// On the device that the options name, or the current one. Raise torch.OutOfMemoryError.
TensorBase empty_mtia(IntArrayRef size, const TensorOptions& options);
TensorBase empty_strided_mtia(IntArrayRef size, IntArrayRef stride, const TensorOptions& options);

}  // namespace at::detail
