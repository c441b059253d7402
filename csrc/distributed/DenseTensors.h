// Tensors for engines that know elements one after the other only: those that have others are copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_mtia {

// What an engine reads.
std::vector<at::Tensor> dense(const std::vector<at::Tensor>& tensors);

// What it writes.
class DenseResults {
 public:
  explicit DenseResults(const std::vector<at::Tensor>& tensors);
  const std::vector<at::Tensor>& dense() const { return dense_; }
  // When it has.
  void finish() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> dense_;
};

}  // namespace torch_mtia
