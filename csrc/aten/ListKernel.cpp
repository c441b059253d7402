#include "ListKernel.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/ForeachUtils.h>

#include <algorithm>

#include "../device/DeviceType.h"

namespace torch_mtia {

bool ListArguments::have_same_length() const {
  const size_t length = lists_.front().size();
  return std::all_of(lists_.begin(), lists_.end(), [&](at::TensorList list) { return list.size() == length; }) &&
         (!has_scalar_list_ || scalars_.size() == length);
}

bool ListArguments::overlap_partially() const {
  const auto overlaps = [](const at::Tensor& written, const at::Tensor& read) {
    const auto status = at::get_overlap_status(written, read);
    return status == at::MemOverlapStatus::Partial || status == at::MemOverlapStatus::TooHard;
  };
  const at::TensorList self = lists_.front();
  for (size_t i = 0; i < self.size(); ++i) {
    for (size_t list = 1; list < lists_.size(); ++list) {
      if (overlaps(self[i], lists_[list][i])) return true;
    }
    for (const at::Tensor* tensor : tensors_) {
      if (overlaps(self[i], *tensor)) return true;
    }
  }
  return false;
}

bool ListArguments::fits_one_item(const Operator& op) const {
  const at::TensorList self = lists_.front();
  if (self.empty() || !have_same_length()) return false;
  const at::ScalarType dtype = self.front().scalar_type();
  const c10::Device device = self.front().device();
  // Integers: whether an operator takes them depends on the values of its scalars.
  if (!is_ours(device) || !(at::isFloatingType(dtype) || at::isComplexType(dtype))) return false;
  // Some operators refuse booleans, also as numbers.
  const auto is_boolean = [](const at::Scalar& scalar) { return scalar.isBoolean(); };
  if (std::any_of(scalars_.begin(), scalars_.end(), is_boolean)) return false;
  // The slow path, which does not round the numbers, is what the operator gives.
  const auto is_one = [](const at::Scalar& scalar) { return scalar.equal(1); };
  if (op.traits.rounds_numbers && at::isReducedFloatingType(dtype) &&
      !std::all_of(scalars_.begin(), scalars_.end(), is_one)) {
    return false;
  }
  const bool tensors_fit = std::all_of(tensors_.begin(), tensors_.end(), [&](const at::Tensor* tensor) {
    return tensor->defined() && tensor->dim() == 0 && tensor->scalar_type() == dtype &&
           (tensor->device() == device || tensor->is_cpu());
  });
  return tensors_fit && at::native::check_fast_path_restrictions(lists_, scalars_) && !overlap_partially();
}

void ListArguments::check(const char* name) const {
  const at::TensorList self = lists_.front();
  const at::Tensor& first = self.front();
  const bool walks_in_step = lists_.size() > 1;
  for (const at::TensorList list : lists_) {
    if (list.empty()) continue;
    TORCH_CHECK(list.size() == self.size(), name, ": expected lists of the same length, got ", self.size(), " and ",
                list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const at::Tensor& tensor = list[i];
      TORCH_CHECK(tensor.device() == first.device(), "Expected all tensors to be on the same device, but found ",
                  first.device(), " and ", tensor.device(), "! (when running ", name, ")");
      if (!walks_in_step) continue;
      TORCH_CHECK(tensor.scalar_type() == list.front().scalar_type(), name,
                  ": expected the tensors of a list to have one dtype, got ", list.front().scalar_type(), " and ",
                  tensor.scalar_type());
      // Kernels walk through memory and take no strides. A step count is one number for each tensor.
      const bool is_alike = tensor.sizes() == self[i].sizes() && tensor.strides() == self[i].strides();
      TORCH_CHECK((is_alike && tensor.is_non_overlapping_and_dense()) || tensor.numel() == 1, name,
                  ": expected dense tensors of the same sizes and strides at position ", i, " of all lists, got ",
                  self[i].sizes(), " and ", tensor.sizes());
    }
  }
  for (const at::Tensor* tensor : tensors_) {
    TORCH_CHECK(!tensor->defined() || tensor->device() == first.device() || (tensor->is_cpu() && tensor->dim() == 0),
                "Expected all tensors to be on the same device, but found ", first.device(), " and ", tensor->device(),
                "! (when running ", name, ")");
  }
}

void advance_versions(at::TensorList list) {
  for (const at::Tensor& tensor : list) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace torch_mtia
