#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <torch/library.h>

#include "../device/DeviceType.h"

namespace torch_mtia {

// Nested tensors of the strided layout have no kernels here, and say so. What they are made of they can tell: autograd
// asks for it where nothing may raise, and the process would end.
MTIA_LIBRARY_IMPL(aten, kNested, m) {
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
}

}  // namespace torch_mtia
