// The parts of torch.nn.SyncBatchNorm, of which PyTorch has kernels for CUDA only: statistics of one rank's batch, of
// those of all ranks, and what is done with them. Made of other operators.
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "../device/DeviceType.h"

namespace torch_mtia {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// All dimensions but that of the channels.
c10::DimVector reduced_dims(const at::Tensor& input) {
  c10::DimVector dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

at::Tensor accumulated(const at::Tensor& tensor) {
  return tensor.to(at::toAccumulateType(tensor.scalar_type(), /*is_cuda=*/true));
}

// One number for each channel, as a factor of `input`.
at::Tensor per_channel(const at::Tensor& numbers, const at::Tensor& input) {
  c10::DimVector sizes(input.dim(), 1);
  sizes[1] = -1;
  return numbers.reshape(sizes);
}

std::tuple<at::Tensor, at::Tensor> stats(const at::Tensor& input, double eps) {
  TORCH_CHECK(input.dim() >= 2, "batch_norm_stats expects an input of 2 or more dimensions, got ", input.dim());
  auto [variance, mean] = at::var_mean(accumulated(input), reduced_dims(input), /*correction=*/0);
  return {std::move(mean), (variance + eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor> gather_stats(const at::Tensor& /*input*/, const at::Tensor& mean,
                                                const at::Tensor& invstd, const OptionalTensor& running_mean,
                                                const OptionalTensor& running_var, double momentum, double eps,
                                                const at::Tensor& counts) {
  const at::Tensor weights = counts.to(mean.scalar_type()).unsqueeze(1), total = weights.sum();
  const at::Tensor all_mean = (mean * weights).sum(0) / total;
  const at::Tensor variances = invstd.pow(-2) - eps;
  const at::Tensor squares = ((variances + (mean - all_mean).square()) * weights).sum(0);
  if (running_mean) running_mean->mul_(1 - momentum).add_(all_mean, momentum);
  if (running_var) running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  return {all_mean, (squares / total + eps).rsqrt()};
}

at::Tensor normalize(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const at::Tensor& mean, const at::Tensor& invstd, double /*eps*/) {
  at::Tensor output = (accumulated(input) - per_channel(mean, input)) * per_channel(invstd, input);
  if (weight) output = output * per_channel(*weight, input);
  if (bias) output = output + per_channel(*bias, input);
  return output.to(input.scalar_type());
}

at::Tensor& normalize_out(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                          const at::Tensor& mean, const at::Tensor& invstd, double eps, at::Tensor& out) {
  return out.copy_(normalize(input, weight, bias, mean, invstd, eps));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_reduce(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const OptionalTensor& weight, bool of_input, bool of_weight, bool of_bias) {
  const at::Tensor gradient = accumulated(grad_output);
  const auto dims = reduced_dims(input);
  const at::Tensor sum = gradient.sum(dims);
  const at::Tensor sum_of_products = (gradient * (accumulated(input) - per_channel(mean, input))).sum(dims);
  const auto dtype = weight ? weight->scalar_type() : sum.scalar_type();
  return {of_input ? sum : at::Tensor(), of_input ? sum_of_products : at::Tensor(),
          of_weight ? (sum_of_products * invstd).to(dtype) : at::Tensor(),
          of_bias ? sum.to(dtype, /*non_blocking=*/false, /*copy=*/true) : at::Tensor()};
}

at::Tensor backward_elemt(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& mean,
                          const at::Tensor& invstd, const OptionalTensor& weight, const at::Tensor& sum,
                          const at::Tensor& sum_of_products, const at::Tensor& counts) {
  const at::Tensor total = counts.sum().to(sum.scalar_type());
  const at::Tensor centered = accumulated(input) - per_channel(mean, input);
  at::Tensor gradient = accumulated(grad_output) - per_channel(sum / total, input) -
                        centered * per_channel(invstd.square() * sum_of_products / total, input);
  gradient = gradient * per_channel(weight ? invstd * *weight : invstd, input);
  return gradient.to(input.scalar_type());
}

}  // namespace

MTIA_LIBRARY_IMPL(aten, kBackend, m) {
  m.impl("batch_norm_stats", stats);
  m.impl("batch_norm_gather_stats_with_counts", gather_stats);
  m.impl("batch_norm_elemt", normalize);
  m.impl("batch_norm_elemt.out", normalize_out);
  m.impl("batch_norm_backward_reduce", backward_reduce);
  m.impl("batch_norm_backward_elemt", backward_elemt);
}

}  // namespace torch_mtia
