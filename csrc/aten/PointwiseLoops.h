// Loops in place of those of ATen's dispatch stubs, for rows with `loop` in yaml/native_functions.yaml.
#pragma once

#include <ATen/TensorIterator.h>
#include <c10/core/Scalar.h>

namespace torch_mtia {

// In 16-bit floating point as on CUDA, in float32 and rounded once, where ATen's loops would round alpha, or a number
// among the operands, to the dtype of the tensors.
void add_loop(at::TensorIteratorBase& iter, const c10::Scalar& alpha);
void mul_loop(at::TensorIteratorBase& iter);

// ATen's divide the least integer by -1, which ends the process. Here it wraps.
void div_trunc_loop(at::TensorIteratorBase& iter);
void lcm_loop(at::TensorIteratorBase& iter);

// ATen's count to an argument and not to the end of their iterator, which makes a difference for an empty one.
void arange_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& steps, const c10::Scalar& step);
void linspace_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& end, int64_t steps);

}  // namespace torch_mtia
