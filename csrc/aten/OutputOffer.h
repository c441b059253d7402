// Has a CPU kernel that makes its results itself make them where they belong.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "../device/AllocationScopes.h"

namespace torch_mtia {

// Offers the bytes of the outputs, as Note [Offered memory] says, to whatever runs while it lives. Undefined outputs
// stand for results that nobody wants. What lies between the elements of an output is not offered, and so neither is
// such an output.
class OutputOffer {
 public:
  explicit OutputOffer(at::TensorList outputs);
  // Sees to it that the results are in the outputs.
  void settle(std::span<at::Tensor> results);

 private:
  at::TensorList outputs_;
  MemoryOffer offer_;
};

}  // namespace torch_mtia
