#include "CollectiveWork.h"

#include <algorithm>

#include "../device/Door.h"
#include "../device/HostView.h"
#include "../device/ScalarTypes.h"

namespace torch_mtia {

bool is_among(const at::Tensor& tensor, const std::vector<at::Tensor>& list) {
  return std::any_of(list.begin(), list.end(), [&](const at::Tensor& each) { return each.is_same(tensor); });
}

CollectiveOperands::CollectiveOperands(const std::vector<at::Tensor>& used, const std::vector<at::Tensor>& written,
                                       const std::vector<at::Tensor>& reduced) {
  if (!HostView::available()) return;  // it has pinned memory instead: see Staging.h
  for (const at::Tensor& tensor : used) {
    if (!is_ours(tensor.device()) || tensor.layout() != at::kStrided) continue;
    operands_.push_back({reinterpret_cast<uint64_t>(tensor.const_data_ptr()), static_cast<int64_t>(tensor.itemsize()),
                         tensor.sizes().vec(), tensor.strides().vec(), dtype_name(tensor.scalar_type()),
                         is_among(tensor, written), is_among(tensor, reduced)});
  }
}

void CollectiveOperands::list(core::OperandSink& sink) const {
  for (const Each& each : operands_) {
    sink.add({each.address, static_cast<uint64_t>(each.element_size), each.sizes, each.strides, each.element_size,
              each.is_written, each.is_reduced ? core::OldBytes::kRead : core::OldBytes::kPassedOn, each.dtype});
  }
}

}  // namespace torch_mtia
