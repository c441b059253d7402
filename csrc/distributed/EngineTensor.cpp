#include "EngineTensor.h"

#include <ATen/DimVector.h>
#include <ATen/ops/from_blob.h>

#include "../device/Door.h"
#include "../device/HostView.h"

namespace torch_mtia {
namespace {

c10::ScalarType engine_dtype(const at::Tensor& tensor, const std::optional<EngineDtypes>& moved_by) {
  const c10::ScalarType dtype = tensor.scalar_type();
  if (!moved_by || moved_by->moves(dtype)) return dtype;
  switch (tensor.element_size()) {
    case 1:
      return c10::kByte;
    case 2:
      return c10::kHalf;
    case 4:
      return c10::kInt;
    case 8:
      return c10::kLong;
    default:
      return c10::kDouble;  // complex128, which has two of them
  }
}

}  // namespace

at::Tensor engine_argument(const at::Tensor& tensor, const std::optional<EngineDtypes>& moved_by) {
  const bool is_host = tensor.device().is_cpu();
  TORCH_CHECK(is_host || is_ours(tensor.device()), "expected a tensor of ", device_name(),
              " or of the CPU, got one of ", tensor.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_host || HostView::available(),
      "a factor in the memory of a device needs a driver with a host view of it: pass a number");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "collectives of ", device_name(),
                              " take dense tensors, got one with layout ", tensor.layout());
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(),
              "collectives take no tensor that is conjugated or negated lazily: "
              "call resolve_conj() or resolve_neg() first");
  void* const address = tensor.mutable_data_ptr();
  void* const host_address = is_host || address == nullptr ? address : HostView::to_host(address);
  const auto options = at::TensorOptions(engine_dtype(tensor, moved_by)).device(c10::kCPU);
  c10::DimVector sizes(tensor.sizes()), strides(tensor.strides());
  const auto numbers = static_cast<int64_t>(tensor.element_size() / options.dtype().itemsize());
  if (numbers != 1) {
    for (int64_t& stride : strides) stride *= numbers;
    sizes.push_back(numbers);
    strides.push_back(1);
  }
  if (is_host) return at::from_blob(host_address, sizes, strides, [tensor](void*) {}, options);
  return at::from_blob(host_address, sizes, strides, options);
}

std::vector<at::Tensor> engine_argument(const std::vector<at::Tensor>& tensors,
                                        const std::optional<EngineDtypes>& moved_by) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(engine_argument(tensor, moved_by));
  return result;
}

std::vector<std::vector<at::Tensor>> engine_argument(const std::vector<std::vector<at::Tensor>>& lists,
                                                     const std::optional<EngineDtypes>& moved_by) {
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& tensors : lists) result.push_back(engine_argument(tensors, moved_by));
  return result;
}

}  // namespace torch_mtia
