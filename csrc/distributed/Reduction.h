// How every operation is done on every dtype, whatever the engine knows: what it does not, it does on wider copies,
// which are rounded once at the end.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "Engine.h"

namespace torch_mtia {

class Reduction {
 public:
  // Raises for an operation that is not defined for the dtype.
  Reduction(const c10d::ReduceOp& operation, c10::ScalarType dtype, const EngineDtypes& engine);

  // The factor of PREMUL_SUM, if it is a tensor; else undefined. Work that runs later reads it.
  static at::Tensor factor_of(const c10d::ReduceOp& operation);

  // What the engine takes in place of an argument. A tensor may be itself.
  at::Tensor widened(const at::Tensor& tensor) const;
  std::vector<at::Tensor> widened(const std::vector<at::Tensor>& tensors) const;
  std::vector<std::vector<at::Tensor>> widened(const std::vector<std::vector<at::Tensor>>& lists) const;
  template <typename Options>
  Options widened(Options options) const {
    options.reduceOp = engine_operation();
    return options;
  }

  // Puts what the engine has reduced where it belongs.
  void narrow(const at::Tensor& wide, const at::Tensor& tensor) const;
  void narrow(const std::vector<at::Tensor>& wide, const std::vector<at::Tensor>& tensors) const;

 private:
  c10d::ReduceOp engine_operation() const;
  // Unsigned numbers as signed ones of the same order, and back.
  bool flips_sign() const;

  // Of each element, before the operation.
  double factor() const;

  c10d::ReduceOp::RedOpType operation_;
  c10::ScalarType dtype_;
  bool is_direct_;  // the engine takes the elements as they are
  c10::ScalarType wide_dtype_;
  double number_ = 1;         // the factor,
  at::Tensor factor_tensor_;  // or where it is: on the host, as no tensor of the device may die with the work
};

}  // namespace torch_mtia
