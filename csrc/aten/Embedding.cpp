// Shapes of embeddings and of bags of them. An index out of range shows when the work runs.
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/_embedding_bag_forward_only_native.h>
#include <ATen/ops/_embedding_bag_native.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "MTIANativeFunctions.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

enum BagMode : int64_t { kSum, kMean, kMax };

bool are_indices(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

FourShapes bag_shapes(bool forward_only, const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                      int64_t mode, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
                      int64_t padding_idx) {
  const bool weighted = is_given(per_sample_weights);
  const bool fits = weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 && are_indices(indices) &&
                    are_indices(offsets) && mode >= kSum && mode <= kMax &&
                    offsets.size(0) >= (include_last_offset ? 1 : 0) && padding_idx < weight.size(0) &&
                    (!weighted || (mode == kSum && per_sample_weights->sizes() == indices.sizes()));
  if (!fits) return std::nullopt;
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  const auto dtype = weight.scalar_type();
  // Sums of these dtypes are left to FBGEMM or caffe2, which need no table of the bags.
  const bool fast_sum = mode == kSum && (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) &&
                        weight.stride(1) == 1 && padding_idx < 0 && (!weighted || per_sample_weights->stride(0) == 1);
  const int64_t counted = forward_only && mode == kSum ? offsets.size(0) : bags;
  const auto index_dtype = at::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const TensorShape bag_size = like(weight, {counted}, index_dtype);
  return {like(weight, {bags, weight.size(1)}), like(weight, {fast_sum ? 0 : indices.size(0)}, index_dtype), bag_size,
          mode == kMax ? like(weight, {bags, weight.size(1)}, index_dtype) : bag_size};
}

// The bag of each index, which the forward leaves out where its kernels do without.
at::Tensor bags_of(const at::Tensor& indices, const at::Tensor& offsets) {
  at::Tensor starts = at::zeros({indices.size(0) + 1}, offsets.options());  // a bag may start after the last index
  starts.index_add_(0, offsets, at::ones_like(offsets));
  return starts.cumsum(0).sub_(1).slice(0, 0, indices.size(0)).to(indices.scalar_type());
}

// See Note [Float32 accumulation] in InFloat32.h.
at::Tensor embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offsets,
                                  const at::Tensor& offset2bag, const at::Tensor& bag_size,
                                  const at::Tensor& maximum_indices, int64_t num_weights, bool scale_grad_by_freq,
                                  int64_t mode, const std::optional<at::Tensor>& per_sample_weights,
                                  int64_t padding_idx) {
  const bool is_ours = at::isReducedFloatingType(grad.scalar_type()) || scale_grad_by_freq;
  if (!is_ours || !are_indices(indices) || !are_indices(offsets)) {
    return at::native::_embedding_bag_backward_symint(grad, indices, offsets, offset2bag, bag_size, maximum_indices,
                                                      num_weights, scale_grad_by_freq, mode, /*sparse=*/false,
                                                      per_sample_weights, padding_idx);
  }
  const bool has_bags = offset2bag.numel() > 0 || indices.numel() == 0;
  return embedding_bag_dense_backward(grad, indices, has_bags ? offset2bag : bags_of(indices, offsets), bag_size,
                                      maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
                                      padding_idx);
}

void check_offsets(const at::Tensor& offsets) {
  if (!are_indices(offsets) || offsets.dim() != 1) return;  // ATen says what is wrong with it
  const at::Tensor all = offsets.to(at::kLong).contiguous();
  const auto* const values = all.const_data_ptr<int64_t>();
  for (int64_t i = 1; i < all.numel(); ++i) {
    TORCH_CHECK(values[i - 1] <= values[i], "embedding_bag: offsets must not descend, but offsets[", i - 1, "] is ",
                values[i - 1], " and offsets[", i, "] is ", values[i]);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag(
    const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool scale_grad_by_freq,
    int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
    int64_t padding_idx) {
  check_offsets(offsets);
  return at::native::_embedding_bag_cpu(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
                                        include_last_offset, padding_idx);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> embedding_bag_forward_only(
    const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool scale_grad_by_freq,
    int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
    int64_t padding_idx) {
  check_offsets(offsets);
  return at::native::_embedding_bag_forward_only_cpu(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                                                     per_sample_weights, include_last_offset, padding_idx);
}

Shape embedding_shape(const at::Tensor& weight, const at::Tensor& indices, int64_t /*padding_idx*/,
                      bool /*scale_grad_by_freq*/, bool /*sparse*/) {
  if (weight.dim() != 2 || weight.size(0) == 0 || !are_indices(indices)) return std::nullopt;
  c10::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return like(weight, sizes);
}

Shape embedding_dense_backward_shape(const at::Tensor& grad_output, const at::Tensor& indices, int64_t num_weights,
                                     int64_t /*padding_idx*/, bool /*scale_grad_by_freq*/) {
  if (!are_indices(indices) || grad_output.dim() < 1 || num_weights < 0 ||
      grad_output.numel() != indices.numel() * grad_output.size(-1)) {
    return std::nullopt;
  }
  return like(grad_output, {num_weights, grad_output.size(-1)});
}

FourShapes embedding_bag_shape(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                               bool /*scale_grad_by_freq*/, int64_t mode, bool /*sparse*/,
                               const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
                               int64_t padding_idx) {
  return bag_shapes(/*forward_only=*/false, weight, indices, offsets, mode, per_sample_weights, include_last_offset,
                    padding_idx);
}

FourShapes embedding_bag_forward_only_shape(const at::Tensor& weight, const at::Tensor& indices,
                                            const at::Tensor& offsets, bool /*scale_grad_by_freq*/, int64_t mode,
                                            bool /*sparse*/, const std::optional<at::Tensor>& per_sample_weights,
                                            bool include_last_offset, int64_t padding_idx) {
  return bag_shapes(/*forward_only=*/true, weight, indices, offsets, mode, per_sample_weights, include_last_offset,
                    padding_idx);
}

Shape embedding_bag_dense_backward_shape(const at::Tensor& grad, const at::Tensor& indices,
                                         const at::Tensor& /*offset2bag*/, const at::Tensor& /*bag_size*/,
                                         const at::Tensor& /*maximum_indices*/, int64_t num_weights,
                                         bool /*scale_grad_by_freq*/, int64_t /*mode*/,
                                         const std::optional<at::Tensor>& /*per_sample_weights*/,
                                         int64_t /*padding_idx*/) {
  if (grad.dim() != 2 || !are_indices(indices) || num_weights < 0) return std::nullopt;
  return like(grad, {num_weights, grad.size(1)});
}

Shape embedding_bag_per_sample_weights_backward_shape(const at::Tensor& grad, const at::Tensor& weight,
                                                      const at::Tensor& indices, const at::Tensor& /*offsets*/,
                                                      const at::Tensor& /*offset2bag*/, int64_t mode,
                                                      int64_t /*padding_idx*/) {
  if (mode != kSum || grad.dim() != 2 || weight.dim() != 2 || indices.dim() != 1 || !are_indices(indices) ||
      weight.size(1) != grad.size(1)) {
    return std::nullopt;
  }
  return like(grad, {indices.size(0)});
}

}  // namespace torch_mtia

namespace at::native {

// By hand: a sparse gradient is made of other operators.
Tensor _embedding_bag_backward_mtia(const Tensor& grad, const Tensor& indices, const Tensor& offsets,
                                    const Tensor& offset2bag, const Tensor& bag_size, const Tensor& maximum_indices,
                                    int64_t num_weights, bool scale_grad_by_freq, int64_t mode, bool sparse,
                                    const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  using torch_mtia::own;
  if (sparse) {
    const bool has_bags = offset2bag.numel() > 0 || indices.numel() == 0;
    const Tensor bags = has_bags ? offset2bag : torch_mtia::bags_of(indices, offsets);
    return at::_embedding_bag_sparse_backward(grad, indices, offsets, bags, bag_size, num_weights, scale_grad_by_freq,
                                              mode, per_sample_weights, padding_idx);
  }
  const auto shape =
      torch_mtia::embedding_bag_dense_backward_shape(grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                                                     scale_grad_by_freq, mode, per_sample_weights, padding_idx);
  constexpr auto run = [](auto&&... arguments) { return torch_mtia::embedding_bag_backward(arguments...); };
  return torch_mtia::make_with_cpu_kernel<1>({"aten::_embedding_bag_backward", 2}, grad.device(), shape, run, own(grad),
                                             own(indices), own(offsets), own(offset2bag), own(bag_size),
                                             own(maximum_indices), own(num_weights), own(scale_grad_by_freq), own(mode),
                                             own(per_sample_weights), own(padding_idx))[0];
}

}  // namespace at::native
