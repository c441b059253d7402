#include "Elements.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "../device/HostView.h"

namespace torch_mtia {

Elements::Elements(std::initializer_list<const at::TensorBase*> tensors, int num_outputs)
    : numel_((*tensors.begin())->numel()), num_operands_(static_cast<int>(tensors.size())), num_outputs_(num_outputs) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(tensors.size() <= kMaxOperands);
  bool all_contiguous = true;
  int operand = 0;
  for (const at::TensorBase* tensor : tensors) {
    const void* data = operand < num_outputs ? tensor->mutable_data_ptr() : tensor->const_data_ptr();
    operands_[operand++] = {HostView::to_host(data), static_cast<int64_t>(tensor->element_size())};
    all_contiguous = all_contiguous && tensor->is_contiguous();
  }
  if (all_contiguous) return;
  const auto sizes = (*tensors.begin())->sizes();
  sizes_.assign(sizes.begin(), sizes.end());
  strides_.reserve(tensors.size() * sizes.size());
  for (const at::TensorBase* tensor : tensors) {
    for (const int64_t stride : tensor->strides()) strides_.push_back(stride * tensor->element_size());
  }
}

uint32_t Elements::accesses(mtia_access* list, uint32_t capacity) const noexcept {
  const auto count = static_cast<uint32_t>(num_operands_);
  for (uint32_t operand = 0; operand < std::min(count, capacity); ++operand) {
    const Operand& of = operands_[operand];
    int64_t size = of.element_size;
    if (contiguous()) {
      size *= numel_;
    } else {
      for (size_t dim = 0; dim < sizes_.size(); ++dim) size += (sizes_[dim] - 1) * stride(operand, dim);
    }
    const auto address = reinterpret_cast<mtia_device_ptr>(HostView::to_device(of.data));
    list[operand] = {{address, static_cast<uint64_t>(size)}, static_cast<int>(operand) < num_outputs_};
  }
  return count;
}

}  // namespace torch_mtia
