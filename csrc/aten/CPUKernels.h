// CPU kernels that are not ATen's own, for rows with `runs: torch_mtia::...`. They run as work items, on host aliases.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace torch_mtia {

void replication_pad2d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out);
void replication_pad3d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out);
void reflection_pad3d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out);
void reflection_pad3d_backward_kernel(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef padding,
                                      const at::Tensor& grad_input);

// ATen's writes as if `out` were contiguous.
void avg_pool3d_kernel(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                       at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                       std::optional<int64_t> divisor_override, const at::Tensor& out);

void layer_norm_out(const at::Tensor& input, at::IntArrayRef normalized_shape, at::OptionalTensorRef weight,
                    at::OptionalTensorRef bias, double eps, at::Tensor& out, at::Tensor& mean, at::Tensor& rstd);

// ATen's, for statistics in the dtype of the input.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                                   at::IntArrayRef normalized_shape,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& bias,
                                                                   std::array<bool, 3> output_mask);

// ATen's, for operands of any strides.
at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2);
at::Tensor& int_mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out);

// ATen's, and for many rows a product with the converted weight.
at::Tensor weight_int8pack_mm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales);

// ATen's, and for integers, as CUDA's.
at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& hist);

// How long a product of (..., rows, inner) by (..., inner, columns) takes on one thread. Raises for two dtypes.
uint64_t product_cost(const at::Tensor& left, const at::Tensor& right);

}  // namespace torch_mtia
