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

// ATen's, for statistics in the dtype of the input, and for 16-bit inputs in float32.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                                   at::IntArrayRef normalized_shape,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const std::optional<at::Tensor>& weight,
                                                                   const std::optional<at::Tensor>& bias,
                                                                   std::array<bool, 3> output_mask);

// ATen's, which count on offsets that ascend: for others they leave results as their memory is, or read beyond the
// indices.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool scale_grad_by_freq,
    int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
    int64_t padding_idx);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag_forward_only(
    const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool scale_grad_by_freq,
    int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
    int64_t padding_idx);

// ATen's, and for 16-bit rows as Note [Float32 accumulation] says: csrc/aten/ScatteredSums.cpp.
at::Tensor& index_put(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                      bool accumulate, bool unsafe);
at::Tensor& put(at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate);
at::Tensor embedding_dense_backward(const at::Tensor& grad_output, const at::Tensor& indices, int64_t num_weights,
                                    int64_t padding_idx, bool scale_grad_by_freq);
at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offset2bag,
                                        const at::Tensor& bag_size, const at::Tensor& maximum_indices,
                                        int64_t num_weights, bool scale_grad_by_freq, int64_t mode,
                                        const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx);
void index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                   const at::Scalar& alpha, const at::Tensor& out);

// ATen's, for operands of any strides.
at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2);
at::Tensor& int_mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out);

// ATen's, and for many rows a product with the converted weight.
at::Tensor weight_int8pack_mm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales);

// ATen's, and for integers, as CUDA's.
at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& hist);

// Whether oneDNN has instructions for a dtype: the answer of one of the operators that PyTorch has for such questions.
bool onednn_has(const char* question);

// How long a product of (..., rows, inner) by (..., inner, columns) takes on one thread. Raises for two dtypes.
uint64_t product_cost(const at::Tensor& left, const at::Tensor& right);

}  // namespace torch_mtia
