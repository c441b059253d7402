// Addition and multiplication of 16-bit floating-point numbers as on CUDA: in float32, rounded once.
#pragma once

#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>

namespace torch_mtia {

// Does what ATen's CPU loop of add does (output = first + alpha * second) where that loop would round alpha, or a
// number among the operands, to the dtype of the tensor. False, and nothing is done, where it would not.
bool add_reduced_precision(at::TensorIteratorBase& iter, const c10::Scalar& alpha);

// The same for mul.
bool multiply_reduced_precision(at::TensorIteratorBase& iter);

}  // namespace torch_mtia
