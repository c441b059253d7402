#include "StridedElements.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "../device/HostView.h"
#include "../device/ScalarTypes.h"

namespace torch_mtia {

StridedElements::StridedElements(std::initializer_list<const at::TensorBase*> tensors, int num_outputs)
    : numel_((*tensors.begin())->numel()), num_operands_(static_cast<int>(tensors.size())), num_outputs_(num_outputs) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(tensors.size() <= kMaxOperands);
  bool all_contiguous = true;
  int operand = 0;
  for (const at::TensorBase* tensor : tensors) {
    const void* data = operand < num_outputs ? tensor->mutable_data_ptr() : tensor->const_data_ptr();
    operands_[operand++] = {HostView::to_host(data), static_cast<int64_t>(tensor->element_size()),
                            tensor->scalar_type()};
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

void StridedElements::list_operands(core::OperandSink& sink) const {
  for (int operand = 0; operand < num_operands_; ++operand) {
    const Operand& of = operands_[operand];
    const auto address = reinterpret_cast<uint64_t>(HostView::to_device(of.data));
    const auto size = static_cast<uint64_t>(of.element_size);
    const bool writes = operand < num_outputs_;
    const auto old_bytes = writes ? core::OldBytes::kOverwritten : core::OldBytes::kRead;
    if (contiguous()) {
      sink.add({address, size, {&numel_, 1}, {&of.element_size, 1}, 1, writes, old_bytes, dtype_name(of.dtype)});
    } else {
      const std::span strides(strides_.data() + operand * sizes_.size(), sizes_.size());
      sink.add({address, size, sizes_, strides, 1, writes, old_bytes, dtype_name(of.dtype)});
    }
  }
}

}  // namespace torch_mtia
