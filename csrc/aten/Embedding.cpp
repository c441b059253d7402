// Embeddings and bags of them. An index out of range shows when the work runs.
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_embedding_bag_dense_backward_native.h>
#include <ATen/ops/_embedding_bag_forward_only_native.h>
#include <ATen/ops/_embedding_bag_native.h>
#include <ATen/ops/_embedding_bag_per_sample_weights_backward_native.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/embedding_dense_backward_native.h>
#include <ATen/ops/embedding_native.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::new_output;

bool are_indices(const Tensor& tensor) {
  return tensor.scalar_type() == kLong || tensor.scalar_type() == kInt;
}

Tensor embedding_host(const Tensor& weight, const Tensor& indices, int64_t padding_idx, bool scale_grad_by_freq,
                      bool sparse) {
  return at::native::embedding_symint(weight, indices, padding_idx, scale_grad_by_freq, sparse);
}

Tensor embedding_bag_backward_host(const Tensor& grad, const Tensor& indices, const Tensor& offsets,
                                   const Tensor& offset2bag, const Tensor& bag_size, const Tensor& maximum_indices,
                                   int64_t num_weights, bool scale_grad_by_freq, int64_t mode,
                                   const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  return at::native::_embedding_bag_backward_symint(grad, indices, offsets, offset2bag, bag_size, maximum_indices,
                                                    num_weights, scale_grad_by_freq, mode, /*sparse=*/false,
                                                    per_sample_weights, padding_idx);
}

}  // namespace

Tensor embedding_mtia(const Tensor& weight, const Tensor& indices, int64_t padding_idx, bool scale_grad_by_freq,
                      bool sparse) {
  return HostFunction<&embedding_host>::call(
      {"aten::embedding"}, weight.dim() == 2 && are_indices(indices),
      [&] {
        DimVector sizes(indices.sizes());
        sizes.push_back(weight.size(1));
        return new_output(sizes, weight.options());
      },
      weight, indices, padding_idx, scale_grad_by_freq, sparse);
}

Tensor embedding_dense_backward_mtia(const Tensor& grad_output, const Tensor& indices, int64_t num_weights,
                                     int64_t padding_idx, bool scale_grad_by_freq) {
  return HostFunction<&embedding_dense_backward_cpu>::call(
      {"aten::embedding_dense_backward", 2},
      are_indices(indices) && grad_output.dim() >= 1 && grad_output.numel() == indices.numel() * grad_output.size(-1) &&
          num_weights >= 0,
      [&] { return new_output({num_weights, grad_output.size(-1)}, grad_output.options()); }, grad_output, indices,
      num_weights, padding_idx, scale_grad_by_freq);
}

namespace {

enum BagMode : int64_t { kSum, kMean, kMax };

template <auto Kernel>
std::tuple<Tensor, Tensor, Tensor, Tensor> embedding_bag_on_host(bool forward_only, const Tensor& weight,
                                                                 const Tensor& indices, const Tensor& offsets,
                                                                 bool scale_grad_by_freq, int64_t mode, bool sparse,
                                                                 const std::optional<Tensor>& per_sample_weights,
                                                                 bool include_last_offset, int64_t padding_idx) {
  const bool weighted = per_sample_weights && per_sample_weights->defined();
  const bool fits = weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 && are_indices(indices) &&
                    are_indices(offsets) && mode >= kSum && mode <= kMax &&
                    offsets.size(0) >= (include_last_offset ? 1 : 0) && padding_idx < weight.size(0) &&
                    (!weighted || (mode == kSum && per_sample_weights->sizes() == indices.sizes()));
  const auto make = [&] {
    const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
    const ScalarType dtype = weight.scalar_type();
    // Sums of these dtypes are left to FBGEMM or caffe2, which need no table of the bags.
    const bool fast_sum = mode == kSum && (dtype == kFloat || dtype == kHalf || dtype == kBFloat16) &&
                          weight.stride(1) == 1 && padding_idx < 0 && (!weighted || per_sample_weights->stride(0) == 1);
    const int64_t counted = forward_only && mode == kSum ? offsets.size(0) : bags;
    const auto index_options = weight.options().dtype(promoteTypes(indices.scalar_type(), offsets.scalar_type()));
    const Tensor bag_size = new_output({counted}, index_options);
    return std::array<Tensor, 4>{
        new_output({bags, weight.size(1)}, weight.options()),
        new_output({fast_sum ? 0 : indices.size(0)}, index_options), bag_size,
        mode == kMax ? new_output({bags, weight.size(1)}, index_options) : new_output({counted}, index_options)};
  };
  auto [output, offset2bag, bag_size, maximum_indices] =
      HostFunction<Kernel>::call({"aten::_embedding_bag", 2}, fits, make, weight, indices, offsets, scale_grad_by_freq,
                                 mode, sparse, per_sample_weights, include_last_offset, padding_idx);
  return {output, offset2bag, bag_size, maximum_indices};
}

// The bag of each index, which the forward leaves out where its kernels do without.
Tensor bags_of(const Tensor& indices, const Tensor& offsets) {
  Tensor starts = at::zeros({indices.size(0) + 1}, offsets.options());  // a bag may start behind the last index
  starts.index_add_(0, offsets, at::ones_like(offsets));
  return starts.cumsum(0).sub_(1).slice(0, 0, indices.size(0)).to(indices.scalar_type());
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> _embedding_bag_mtia(const Tensor& weight, const Tensor& indices,
                                                               const Tensor& offsets, bool scale_grad_by_freq,
                                                               int64_t mode, bool sparse,
                                                               const std::optional<Tensor>& per_sample_weights,
                                                               bool include_last_offset, int64_t padding_idx) {
  return embedding_bag_on_host<&_embedding_bag_cpu>(/*forward_only=*/false, weight, indices, offsets,
                                                    scale_grad_by_freq, mode, sparse, per_sample_weights,
                                                    include_last_offset, padding_idx);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> _embedding_bag_forward_only_mtia(
    const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
    bool sparse, const std::optional<Tensor>& per_sample_weights, bool include_last_offset, int64_t padding_idx) {
  return embedding_bag_on_host<&_embedding_bag_forward_only_cpu>(/*forward_only=*/true, weight, indices, offsets,
                                                                 scale_grad_by_freq, mode, sparse, per_sample_weights,
                                                                 include_last_offset, padding_idx);
}

Tensor _embedding_bag_backward_mtia(const Tensor& grad, const Tensor& indices, const Tensor& offsets,
                                    const Tensor& offset2bag, const Tensor& bag_size, const Tensor& maximum_indices,
                                    int64_t num_weights, bool scale_grad_by_freq, int64_t mode, bool sparse,
                                    const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  if (sparse) {
    const bool has_bags = offset2bag.numel() > 0 || indices.numel() == 0;
    return at::_embedding_bag_sparse_backward(grad, indices, offsets, has_bags ? offset2bag : bags_of(indices, offsets),
                                              bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights,
                                              padding_idx);
  }
  return HostFunction<&embedding_bag_backward_host>::call(
      {"aten::_embedding_bag_backward", 2}, grad.dim() == 2 && are_indices(indices) && num_weights >= 0,
      [&] { return new_output({num_weights, grad.size(1)}, grad.options()); }, grad, indices, offsets, offset2bag,
      bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx);
}

Tensor _embedding_bag_dense_backward_mtia(const Tensor& grad, const Tensor& indices, const Tensor& offset2bag,
                                          const Tensor& bag_size, const Tensor& maximum_indices, int64_t num_weights,
                                          bool scale_grad_by_freq, int64_t mode,
                                          const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  return HostFunction<&_embedding_bag_dense_backward_cpu>::call(
      {"aten::_embedding_bag_dense_backward", 2}, grad.dim() == 2 && are_indices(indices) && num_weights >= 0,
      [&] { return new_output({num_weights, grad.size(1)}, grad.options()); }, grad, indices, offset2bag, bag_size,
      maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx);
}

Tensor _embedding_bag_per_sample_weights_backward_mtia(const Tensor& grad, const Tensor& weight, const Tensor& indices,
                                                       const Tensor& offsets, const Tensor& offset2bag, int64_t mode,
                                                       int64_t padding_idx) {
  return HostFunction<&_embedding_bag_per_sample_weights_backward_cpu>::call(
      {"aten::_embedding_bag_per_sample_weights_backward", 2},
      mode == kSum && grad.dim() == 2 && weight.dim() == 2 && indices.dim() == 1 && are_indices(indices) &&
          weight.size(1) == grad.size(1),
      [&] { return new_output({indices.size(0)}, grad.options()); }, grad, weight, indices, offsets, offset2bag, mode,
      padding_idx);
}

}  // namespace at::native
