// Note [Products of 16 bits]
// Where oneDNN has no instructions for a 16-bit type (float16 without AVX512-FP16, bfloat16 without AVX-512), ATen
// multiplies in loops of its own: a product of 512 x 512 matrices of float16 takes 105 ms on two cores of a Zen 5, and
// 1.4 ms by way of float32. Results are rounded once, from sums of float32, and so about as close as the CPU device's,
// and not equal to them to the last bit. Small products stay ATen's, and so do one or two rows times a matrix whose
// columns are contiguous, which its loops are quick at. The larger operand is converted in parts that the caches hold:
// a conversion of all of it would wait for fresh pages, and expanded batches would take memory that they do not have.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

// For two matrices, or two batches of matrices.
bool is_quicker_as_floats(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out);

// alpha * left @ right + beta * bias, on host aliases, in a work item. `bias` is broadcast, and not read where beta is
// 0. Where the result `shares` memory with an operand, or with the bias and is not the bias, it is made apart.
void multiply_as_floats(const at::Tensor& left, const at::Tensor& right, float alpha, const at::Tensor& bias,
                        float beta, bool shares, const at::Tensor& out);

}  // namespace torch_mtia
