// Layer, group and batch normalization.
#include <ATen/native/batch_norm.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_batch_norm_with_update_native.h>
#include <ATen/ops/_native_batch_norm_legit_native.h>
#include <ATen/ops/batch_norm_backward_native.h>
#include <ATen/ops/batch_norm_update_stats_native.h>
#include <ATen/ops/native_batch_norm_backward_native.h>
#include <ATen/ops/native_batch_norm_native.h>
#include <ATen/ops/native_group_norm_backward_native.h>
#include <ATen/ops/native_group_norm_native.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <ATen/ops/ones.h>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::keep;
using torch_mtia::keep_output;
using torch_mtia::kNormalizationWeight;
using torch_mtia::new_output;
using torch_mtia::new_output_like;
using torch_mtia::run_on_host;
using torch_mtia::Written;

const Tensor& or_undefined(const std::optional<Tensor>& tensor) {
  static const auto* const undefined = new Tensor();
  return tensor ? *tensor : *undefined;
}

// The dtype of statistics: the parameters' when an input of 16 bits comes with parameters of 32.
TensorOptions statistics(const Tensor& input, std::initializer_list<std::optional<Tensor>> parameters) {
  for (const auto& parameter : parameters) {
    if (parameter && parameter->defined()) return input.options().dtype(parameter->scalar_type());
  }
  return input.options();
}

bool has_channels(const std::optional<Tensor>& tensor, int64_t channels) {
  return !tensor || !tensor->defined() || (tensor->dim() == 1 && tensor->size(0) == channels);
}

}  // namespace

// Layer normalization: the statistics have the dtype of the input, as the device's meta functions promise.

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_mtia(const Tensor& input, IntArrayRef normalized_shape,
                                                          const std::optional<Tensor>& weight,
                                                          const std::optional<Tensor>& bias, double eps) {
  const auto [rows, row_size] =
      _check_layer_norm_inputs(input, normalized_shape, or_undefined(weight), or_undefined(bias));
  HostFunction<&layer_norm_cpu>::check("aten::native_layer_norm", true, input, normalized_shape, weight, bias, eps);
  const Tensor output = new_output_like(input);
  DimVector statistics_shape(input.sizes());
  std::fill(statistics_shape.end() - static_cast<std::ptrdiff_t>(normalized_shape.size()), statistics_shape.end(), 1);
  const Tensor mean = new_output(statistics_shape, input.options());
  const Tensor rstd = new_output(statistics_shape, input.options());
  if (rows > 0) {
    run_on_host(
        {"aten::native_layer_norm", kNormalizationWeight}, input.device(),
        [rows = rows, row_size = row_size, eps](const Tensor& x, const Tensor& gamma, const Tensor& beta, Tensor& y,
                                                Tensor& mean_out, Tensor& rstd_out) {
          const auto dense = [](const Tensor& tensor) {
            return tensor.defined() ? tensor.expect_contiguous() : c10::MaybeOwned<Tensor>::borrowed(tensor);
          };
          const ScalarType dtype = gamma.defined()  ? gamma.scalar_type()
                                   : beta.defined() ? beta.scalar_type()
                                                    : x.scalar_type();
          if (dtype == x.scalar_type()) {
            LayerNormKernel(kCPU, *dense(x), *dense(gamma), *dense(beta), rows, row_size, eps, &y, &mean_out,
                            &rstd_out);
            return;
          }
          Tensor wide_mean = mean_out.to(dtype);
          Tensor wide_rstd = rstd_out.to(dtype);
          LayerNormKernel(kCPU, *dense(x), *dense(gamma), *dense(beta), rows, row_size, eps, &y, &wide_mean,
                          &wide_rstd);
          mean_out.copy_(wide_mean);
          rstd_out.copy_(wide_rstd);
        },
        keep(input), keep(or_undefined(weight)), keep(or_undefined(bias)), keep_output(output), keep_output(mean),
        keep_output(rstd));
  }
  return {output, mean, rstd};
}

namespace {

// The CPU kernel, which wants statistics of the parameters' dtype.
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_host(const Tensor& grad_out, const Tensor& input,
                                                            IntArrayRef normalized_shape, const Tensor& mean,
                                                            const Tensor& rstd, const std::optional<Tensor>& weight,
                                                            const std::optional<Tensor>& bias,
                                                            std::array<bool, 3> output_mask) {
  const auto dtype = statistics(input, {weight, bias}).dtype().toScalarType();
  return layer_norm_backward_cpu(grad_out, input, normalized_shape, mean.to(dtype), rstd.to(dtype), weight, bias,
                                 output_mask);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward_mtia(
    const Tensor& grad_out, const Tensor& input, IntArrayRef normalized_shape, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, std::array<bool, 3> output_mask) {
  using Kernel = HostFunction<&layer_norm_backward_host>;
  _check_layer_norm_inputs(input, normalized_shape, or_undefined(weight), or_undefined(bias));
  Kernel::check("aten::native_layer_norm_backward", true, grad_out, input, normalized_shape, mean, rstd, weight, bias,
                output_mask);
  const auto parameter = [&](const std::optional<Tensor>& tensor) {
    const Tensor& own = or_undefined(tensor);
    return own.defined() ? new_output_like(own) : new_output(normalized_shape, input.options());
  };
  const std::array<Tensor, 3> grads{output_mask[0] ? new_output_like(input) : Tensor(),
                                    output_mask[1] ? parameter(weight) : Tensor(),
                                    output_mask[2] ? parameter(bias) : Tensor()};
  Kernel::run({"aten::native_layer_norm_backward", kNormalizationWeight}, input.device(), grads, grad_out, input,
              normalized_shape, mean, rstd, weight, bias, output_mask);
  return {grads[0], grads[1], grads[2]};
}

// Group normalization

std::tuple<Tensor, Tensor, Tensor> native_group_norm_mtia(const Tensor& input, const std::optional<Tensor>& weight,
                                                          const std::optional<Tensor>& bias, int64_t N, int64_t C,
                                                          int64_t HxW, int64_t group, double eps) {
  using Kernel = HostFunction<&native_group_norm>;
  Kernel::check(
      "aten::native_group_norm",
      group > 0 && C % group == 0 && input.numel() == N * C * HxW && has_channels(weight, C) && has_channels(bias, C),
      input, weight, bias, N, C, HxW, group, eps);
  const auto options = statistics(input, {weight, bias});
  const std::array<Tensor, 3> outputs{new_output_like(input, input.suggest_memory_format()),
                                      new_output({N, group}, options), new_output({N, group}, options)};
  Kernel::run({"aten::native_group_norm", kNormalizationWeight}, input.device(), outputs, input, weight, bias, N, C,
              HxW, group, eps);
  return {outputs[0], outputs[1], outputs[2]};
}

std::tuple<Tensor, Tensor, Tensor> native_group_norm_backward_mtia(const Tensor& grad_out, const Tensor& input,
                                                                   const Tensor& mean, const Tensor& rstd,
                                                                   const std::optional<Tensor>& weight, int64_t N,
                                                                   int64_t C, int64_t HxW, int64_t group,
                                                                   std::array<bool, 3> output_mask) {
  using Kernel = HostFunction<&native_group_norm_backward>;
  Kernel::check("aten::native_group_norm_backward",
                group > 0 && C % group == 0 && input.numel() == N * C * HxW && grad_out.numel() == input.numel() &&
                    mean.numel() == N * group && rstd.numel() == N * group && has_channels(weight, C),
                grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask);
  const auto parameter = [&] { return new_output({C}, statistics(input, {weight})); };
  const std::array<Tensor, 3> grads{output_mask[0] ? new_output_like(input, input.suggest_memory_format()) : Tensor(),
                                    output_mask[1] ? parameter() : Tensor(), output_mask[2] ? parameter() : Tensor()};
  Kernel::run({"aten::native_group_norm_backward", kNormalizationWeight}, input.device(), grads, grad_out, input, mean,
              rstd, weight, N, C, HxW, group, output_mask);
  return {grads[0], grads[1], grads[2]};
}

// Batch normalization: every forward operator is the same kernel with other ways to pass the running statistics.
//
// Statistics of 16-bit inputs are float32, as on CUDA. The CPU kernels keep them in the dtype of the parameters, so
// these are handed over in float32.

namespace {

using MaybeTensor = std::optional<Tensor>;

bool has_value(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}

MaybeTensor widened(const MaybeTensor& tensor) {
  return has_value(tensor) ? tensor->to(kFloat) : tensor;
}

// With a parameter in float32 the kernels keep the statistics so, whatever else is missing.
MaybeTensor widened_weight(const Tensor& input, const MaybeTensor& weight) {
  return has_value(weight) ? weight->to(kFloat) : at::ones({input.size(1)}, input.options().dtype(kFloat));
}

// Runs kernel(running_mean, running_var) in float32, and keeps what it makes of them.
template <typename Kernel>
auto with_widened_statistics(const MaybeTensor& running_mean, const MaybeTensor& running_var, Kernel kernel) {
  const MaybeTensor mean = widened(running_mean);
  const MaybeTensor var = widened(running_var);
  auto results = kernel(mean, var);
  if (has_value(mean)) running_mean->copy_(*mean);
  if (has_value(var)) running_var->copy_(*var);
  return results;
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_host(const Tensor& input, const MaybeTensor& weight,
                                                   const MaybeTensor& bias, const MaybeTensor& running_mean,
                                                   const MaybeTensor& running_var, bool training, double momentum,
                                                   double eps) {
  const auto run = [&]() -> std::tuple<Tensor, Tensor, Tensor> {
    if (!isReducedFloatingType(input.scalar_type()) || input.dim() < 2) {
      return batch_norm_cpu(input, weight, bias, running_mean, running_var, training, momentum, eps);
    }
    return with_widened_statistics(running_mean, running_var, [&](const MaybeTensor& mean, const MaybeTensor& var) {
      return batch_norm_cpu(input, widened_weight(input, weight), widened(bias), mean, var, training, momentum, eps);
    });
  };
  auto [output, mean, invstd] = run();
  // Of other devices than the CPU, PyTorch's meta function expects the statistics in use.
  if (!training) return {output, *running_mean, running_var->add(eps).rsqrt_()};
  return {output, mean, invstd};
}

std::tuple<Tensor, Tensor> batch_norm_update_stats_host(const Tensor& input, const MaybeTensor& running_mean,
                                                        const MaybeTensor& running_var, double momentum) {
  if (!isReducedFloatingType(input.scalar_type())) {
    return batch_norm_update_stats_cpu(input, running_mean, running_var, momentum);
  }
  return with_widened_statistics(running_mean, running_var, [&](const MaybeTensor& mean, const MaybeTensor& var) {
    return batch_norm_update_stats_cpu(input.to(kFloat), mean, var, momentum);
  });
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward_host(const Tensor& grad_out, const Tensor& input,
                                                            const MaybeTensor& weight, const MaybeTensor& running_mean,
                                                            const MaybeTensor& running_var,
                                                            const MaybeTensor& save_mean,
                                                            const MaybeTensor& save_invstd, bool train, double eps,
                                                            std::array<bool, 3> output_mask) {
  if (!isReducedFloatingType(input.scalar_type()) || input.dim() < 2) {
    return batch_norm_backward_cpu(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train,
                                   eps, output_mask);
  }
  return batch_norm_backward_cpu(grad_out, input, widened_weight(input, weight), widened(running_mean),
                                 widened(running_var), widened(save_mean), widened(save_invstd), train, eps,
                                 output_mask);
}

TensorOptions batch_statistics(const Tensor& input, std::initializer_list<MaybeTensor> parameters) {
  return isReducedFloatingType(input.scalar_type()) ? input.options().dtype(kFloat) : statistics(input, parameters);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_on_host(const Tensor& input, const std::optional<Tensor>& weight,
                                                      const std::optional<Tensor>& bias,
                                                      const std::optional<Tensor>& running_mean,
                                                      const std::optional<Tensor>& running_var, bool training,
                                                      double momentum, double eps) {
  using Kernel = HostFunction<&batch_norm_host>;
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  const bool has_statistics = or_undefined(running_mean).defined() && or_undefined(running_var).defined();
  Kernel::check("aten::native_batch_norm",
                input.dim() >= 2 && (training || has_statistics) && has_channels(weight, channels) &&
                    has_channels(bias, channels) && has_channels(running_mean, channels) &&
                    has_channels(running_var, channels),
                input, weight, bias, Written{running_mean}, Written{running_var}, training, momentum, eps);
  const auto options = batch_statistics(input, {weight, bias, running_mean, running_var});
  const std::array<Tensor, 3> outputs{new_output_like(input, input.suggest_memory_format()),
                                      new_output({channels}, options), new_output({channels}, options)};
  Kernel::run({"aten::native_batch_norm", kNormalizationWeight}, input.device(), outputs, input, weight, bias,
              Written{running_mean}, Written{running_var}, training, momentum, eps);
  return {outputs[0], outputs[1], outputs[2]};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> batch_norm_mtia(const Tensor& input, const std::optional<Tensor>& weight,
                                                   const std::optional<Tensor>& bias,
                                                   const std::optional<Tensor>& running_mean,
                                                   const std::optional<Tensor>& running_var, bool training,
                                                   double momentum, double eps) {
  return batch_norm_on_host(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> _batch_norm_legit_mtia(const Tensor& input, const std::optional<Tensor>& weight,
                                                          const std::optional<Tensor>& bias, Tensor& running_mean,
                                                          Tensor& running_var, bool training, double momentum,
                                                          double eps) {
  return batch_norm_on_host(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> _batch_norm_legit_no_stats_mtia(const Tensor& input,
                                                                   const std::optional<Tensor>& weight,
                                                                   const std::optional<Tensor>& bias, bool training,
                                                                   double momentum, double eps) {
  return batch_norm_on_host(input, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> _batch_norm_with_update_mtia(const Tensor& input,
                                                                        const std::optional<Tensor>& weight,
                                                                        const std::optional<Tensor>& bias,
                                                                        Tensor& running_mean, Tensor& running_var,
                                                                        double momentum, double eps) {
  auto [output, save_mean, save_var] =
      batch_norm_on_host(input, weight, bias, running_mean, running_var, /*training=*/true, momentum, eps);
  return {output, save_mean, save_var, new_output({0}, input.options().dtype(kByte))};
}

std::tuple<Tensor, Tensor> batch_norm_update_stats_mtia(const Tensor& input, const std::optional<Tensor>& running_mean,
                                                        const std::optional<Tensor>& running_var, double momentum) {
  using Kernel = HostFunction<&batch_norm_update_stats_host>;
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  Kernel::check("aten::batch_norm_update_stats",
                input.dim() >= 2 && has_channels(running_mean, channels) && has_channels(running_var, channels), input,
                Written{running_mean}, Written{running_var}, momentum);
  const auto options = batch_statistics(input, {running_mean, running_var});
  const std::array<Tensor, 2> outputs{new_output({channels}, options), new_output({channels}, options)};
  Kernel::run({"aten::batch_norm_update_stats", kNormalizationWeight}, input.device(), outputs, input,
              Written{running_mean}, Written{running_var}, momentum);
  return {outputs[0], outputs[1]};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward_mtia(const Tensor& grad_out, const Tensor& input,
                                                                   const std::optional<Tensor>& weight,
                                                                   const std::optional<Tensor>& running_mean,
                                                                   const std::optional<Tensor>& running_var,
                                                                   const std::optional<Tensor>& save_mean,
                                                                   const std::optional<Tensor>& save_invstd, bool train,
                                                                   double eps, std::array<bool, 3> output_mask) {
  using Kernel = HostFunction<&batch_norm_backward_host>;
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  const auto& mean = train ? save_mean : running_mean;
  const auto& var = train ? save_invstd : running_var;
  Kernel::check("aten::native_batch_norm_backward",
                input.dim() >= 2 && grad_out.sizes() == input.sizes() && has_channels(weight, channels) &&
                    or_undefined(mean).defined() && or_undefined(var).defined() && has_channels(mean, channels) &&
                    has_channels(var, channels),
                grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask);
  const auto options = isReducedFloatingType(input.scalar_type())
                           ? statistics(input, {weight})
                           : statistics(input, {weight, running_mean, save_mean});
  const std::array<Tensor, 3> grads{output_mask[0] ? new_output_like(input, input.suggest_memory_format()) : Tensor(),
                                    output_mask[1] ? new_output({channels}, options) : Tensor(),
                                    output_mask[2] ? new_output({channels}, options) : Tensor()};
  const auto format = input.suggest_memory_format();
  const bool contiguous = input.numel() > 0 && grad_out.suggest_memory_format() == format &&
                          grad_out.is_contiguous(format) && input.is_contiguous(format);
  if (!contiguous || isReducedFloatingType(input.scalar_type())) {
    Kernel::run({"aten::native_batch_norm_backward", kNormalizationWeight}, input.device(), grads, grad_out, input,
                weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask);
    return {grads[0], grads[1], grads[2]};
  }
  // The stub, because the CPU kernel makes its result twice and only the first would take the output's memory.
  run_on_host(
      {"aten::native_batch_norm_backward", kNormalizationWeight}, input.device(),
      [train, eps](Tensor& grad_input, Tensor& grad_weight, Tensor& grad_bias, const Tensor& grad_out,
                   const Tensor& input, const Tensor& weight, const Tensor& running_mean, const Tensor& running_var,
                   const Tensor& save_mean, const Tensor& save_invstd) {
        batch_norm_cpu_backward_stub(kCPU, grad_input, grad_weight, grad_bias, grad_out, input, weight, running_mean,
                                     running_var, save_mean, save_invstd, train, eps);
      },
      keep_output(grads[0]), keep_output(grads[1]), keep_output(grads[2]), keep(grad_out), keep(input),
      keep(or_undefined(weight)), keep(or_undefined(running_mean)), keep(or_undefined(running_var)),
      keep(or_undefined(save_mean)), keep(or_undefined(save_invstd)));
  return {grads[0], grads[1], grads[2]};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward_mtia(
    const Tensor& grad_out, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& running_mean,
    const std::optional<Tensor>& running_var, const std::optional<Tensor>& save_mean,
    const std::optional<Tensor>& save_var, bool update, double eps, std::array<bool, 3> output_mask,
    const Tensor& /*reserve*/) {
  return native_batch_norm_backward_mtia(grad_out, input, weight, running_mean, running_var, save_mean, save_var,
                                         update, eps, output_mask);
}

}  // namespace at::native
