#include "DenseTensors.h"

#include <ATen/ops/empty.h>

namespace torch_mtia {

std::vector<at::Tensor> dense(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.contiguous());
  return result;
}

DenseResults::DenseResults(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  for (const at::Tensor& tensor : tensors) {
    dense_.push_back(tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options()));
  }
}

void DenseResults::finish() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!dense_[i].is_same(tensors_[i])) tensors_[i].copy_(dense_[i]);
  }
}

}  // namespace torch_mtia
