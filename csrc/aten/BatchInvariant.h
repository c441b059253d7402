// What torch_mtia.numerics("batch_invariant") promises of operators.
//
// Note [Batch invariance]
// A library divides a matmul by its whole shape, by strides and by threads, and sums in another order for each. In this
// mode every element of a product is its own sum, over the inner dimension in one order (BatchInvariant.cpp), whatever
// else is computed beside it: rows have the same bits in a batch of any size, and mm, bmm, mv and dot agree. Matmuls,
// convolutions and attention are such products. Other CPU kernels run on one thread, except loops over elements: their
// sums do not depend on the number of threads either.
// The mode is the process's, as that of torch.use_deterministic_algorithms, so that a backward has it on its own
// thread. A call reads it: work that is queued, or captured in a graph, has the mode of its call.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace torch_mtia {

bool is_batch_invariant() noexcept;
void set_batch_invariant(bool wanted) noexcept;

// What a mode computes in its own order: the types of floating-point and complex numbers that ATen multiplies.
bool multiplies_in_order(at::ScalarType dtype) noexcept;

// On host aliases. out = alpha * left @ right + beta * bias, of two matrices or two batches of matrices of one dtype.
// `bias` has the dtype of `out`, may be `out`, is broadcast, and is not read where beta is 0. `out` overlaps nothing
// else.
void multiply_in_order(const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha, const at::Tensor& bias,
                       const at::Scalar& beta, const at::Tensor& out);

// On host aliases in float or double: at::convolution and at::convolution_backward as products.
at::Tensor convolve_in_order(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                             at::IntArrayRef output_padding, int64_t groups);
std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiate_convolution_in_order(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask);

}  // namespace torch_mtia
