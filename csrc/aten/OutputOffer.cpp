#include "OutputOffer.h"

#include <algorithm>

namespace torch_mtia {
namespace {

// Also of the bits of a lazily conjugate or negative result, which an output does not have.
bool same_layout(const at::Tensor& left, const at::Tensor& right) {
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) return false;
  if (left.is_conj() != right.is_conj() || left.is_neg() != right.is_neg()) return false;
  for (int64_t dim = 0; dim < left.dim(); ++dim) {
    if (left.size(dim) != 1 && left.stride(dim) != right.stride(dim)) return false;
  }
  return true;
}

}  // namespace

OutputOffer::OutputOffer(at::TensorList outputs) : outputs_(outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.is_non_overlapping_and_dense())
      offer_.add(output.mutable_data_ptr(), output.nbytes());
  }
}

void OutputOffer::settle(std::span<at::Tensor> results) {
  offer_.close();
  TORCH_INTERNAL_ASSERT(results.size() == outputs_.size());
  const auto in_place = [&](size_t i) {
    return results[i].const_data_ptr() == outputs_[i].const_data_ptr() && same_layout(results[i], outputs_[i]);
  };
  const auto uses_offer = [&](const at::Tensor& result) {
    return std::any_of(outputs_.begin(), outputs_.end(), [&](const at::Tensor& output) {
      return output.defined() && output.storage().data() == result.storage().data();
    });
  };
  c10::SmallVector<size_t, 4> to_copy;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].defined() || outputs_[i].numel() == 0) continue;
    TORCH_INTERNAL_ASSERT(results[i].defined() && results[i].sizes() == outputs_[i].sizes());
    if (in_place(i)) continue;
    if (uses_offer(results[i])) results[i] = results[i].clone();
    to_copy.push_back(i);
  }
  for (const size_t i : to_copy) outputs_[i].copy_(results[i]);
}

}  // namespace torch_mtia
