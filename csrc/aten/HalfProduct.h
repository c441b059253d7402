// Note [Products of 16 bits]
// Where oneDNN has no instructions for a 16-bit type (float16 without AVX512-FP16, bfloat16 without AVX-512), ATen
// multiplies in loops of its own: a product of 512 x 512 matrices of float16 takes 110 ms on one core of a Zen 5, and
// 1.3 ms by way of float32. Results are rounded once, from sums of float32, and so at least as close as the CPU
// device's, and not equal to them to the last bit. Small products stay ATen's, and so does one row times a matrix whose
// columns are contiguous, which its loops are quick at.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

// For two matrices, or two batches of matrices.
bool is_quicker_as_floats(const at::Tensor& left, const at::Tensor& right);

// On host aliases, in a work item. `bias` is broadcast.
void multiply_as_floats(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out);
void multiply_as_floats(const at::Tensor& bias, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                        const at::Scalar& alpha, const at::Tensor& out);

}  // namespace torch_mtia
