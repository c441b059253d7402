// Layer, group and batch normalization.
#include <ATen/Parallel.h>
#include <ATen/native/batch_norm.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_batch_norm_with_update_native.h>
#include <ATen/ops/_native_batch_norm_legit_native.h>
#include <ATen/ops/batch_norm_backward_native.h>
#include <ATen/ops/batch_norm_update_stats_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward_native.h>
#include <ATen/ops/native_batch_norm_native.h>
#include <ATen/ops/native_layer_norm_backward_native.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../processor/attributes.h"
#include "../processor/floats16.h"
#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "MTIANativeFunctions.h"
#include "ShapeFunctions.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia {

// Gradients of layer normalization for inputs of 16 bits, accumulated in float32.

namespace {

struct LayerNormGradients {
  const at::Tensor& grad_out;  // (rows, columns), contiguous, as the input is
  const at::Tensor& input;
  const at::Tensor& mean;  // one for each row, contiguous and of the input's dtype, as rstd is
  const at::Tensor& rstd;
  const at::Tensor& weight;  // float32 and contiguous; undefined: ones
  int64_t rows;
  int64_t columns;
  // Outputs; undefined: not wanted. That of the input has its dtype, those of the parameters are float32.
  const at::Tensor& grad_input;
  const at::Tensor& grad_weight;
  const at::Tensor& grad_bias;
};

constexpr int64_t kLanes = 32;      // sums that a loop has side by side: constant, so that it becomes vectors
constexpr int64_t kMostParts = 64;  // of the rows, each of which has sums of its own for the parameters
constexpr int64_t kLeastRows = 16;  // of a part
constexpr float kHalf = 0.5F;
constexpr int64_t kGrain = 32768;  // elements that are worth a thread

struct Task {
  const void* grad_out;
  const void* input;
  const void* mean;
  const void* rstd;
  const float* weight;
  int64_t columns;
  void* grad_input;
  float epsilon;  // of the dtype
};

// The buffers of a thread, each of as many floats as a row has.
struct Buffers {
  float* normalized;
  float* gradient;
  float* grad_weight;  // sums over rows
  float* grad_bias;
};

// Calls step(i) for i in [0, count): most of them in loops of constant size.
template <typename Step>
INLINED void for_lanes(int64_t count, Step step) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) step(i + lane, lane);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) step(i + lane, lane);
}

INLINED float total(const float* lanes) {
  float sums[kLanes];
  std::copy_n(lanes, kLanes, sums);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

// The statistics of a row were rounded to 16 bits when the forward stored them, and the mean of numbers far from zero
// lost most of its digits. They are computed again: the mean, and without the epsilon, which the backward does not
// know, the deviation, which counts if it is what was stored but for the rounding.
INLINED float refined(float stored, float computed, float tolerance) {
  return std::abs(computed - stored) <= tolerance ? computed : stored;
}

template <typename T>
INLINED void differentiate_row(const Task& task, int64_t row, const Buffers& buffers) {
  const int64_t columns = task.columns;
  const auto count = static_cast<float>(columns);
  const T* const input = static_cast<const T*>(task.input) + row * columns;
  const T* const grad_out = static_cast<const T*>(task.grad_out) + row * columns;
  const float stored_mean = widened(static_cast<const T*>(task.mean)[row]);
  const float stored_rstd = widened(static_cast<const T*>(task.rstd)[row]);
  float* const x = buffers.normalized;
  float* const g = buffers.gradient;

  float sums[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] = widened(input[i]);
    g[i] = widened(grad_out[i]);
    sums[lane] += x[i] - stored_mean;
  });
  const float shift = total(sums) / count;
  const float mean =
      refined(stored_mean, stored_mean + shift,
              task.epsilon * std::abs(stored_mean) + std::numeric_limits<float>::epsilon() / stored_rstd);
  float squares[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] -= mean;
    squares[lane] += x[i] * x[i];
  });
  const float rstd =
      refined(stored_rstd, 1 / std::sqrt(total(squares) / count), kHalf * task.epsilon * std::abs(stored_rstd));

  float* const grad_weight = buffers.grad_weight;
  float* const grad_bias = buffers.grad_bias;
  float products[kLanes] = {};
  float gradients[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] *= rstd;
    grad_weight[i] += g[i] * x[i];
    grad_bias[i] += g[i];
    g[i] *= task.weight[i];
    products[lane] += g[i] * x[i];
    gradients[lane] += g[i];
  });
  if (task.grad_input == nullptr) return;
  const float slope = total(products) / count;
  const float level = total(gradients) / count;
  T* const grad_input = static_cast<T*>(task.grad_input) + row * columns;
  for_lanes(columns, [&](int64_t i, int64_t /*lane*/) __attribute__((always_inline)) {
    narrow(rstd * (g[i] - level - x[i] * slope), grad_input[i]);
  });
}

VECTORIZED void differentiate_rows(BFloat16* /*type*/, const Task& task, int64_t begin, int64_t end,
                                   const Buffers& buffers) {
  for (int64_t row = begin; row < end; ++row) differentiate_row<BFloat16>(task, row, buffers);
}
VECTORIZED void differentiate_rows(Float16* /*type*/, const Task& task, int64_t begin, int64_t end,
                                   const Buffers& buffers) {
  for (int64_t row = begin; row < end; ++row) differentiate_row<Float16>(task, row, buffers);
}

// The bits of the results do not depend on the number of threads.
void layer_norm_gradients(const LayerNormGradients& call) {
  const int64_t columns = call.columns;
  const bool is_bfloat16 = call.input.scalar_type() == at::kBFloat16;
  const auto width = static_cast<size_t>(columns);
  std::vector<float> ones;
  if (!call.weight.defined()) ones.assign(width, 1.0F);
  const Task task{call.grad_out.const_data_ptr(),
                  call.input.const_data_ptr(),
                  call.mean.const_data_ptr(),
                  call.rstd.const_data_ptr(),
                  call.weight.defined() ? call.weight.const_data_ptr<float>() : ones.data(),
                  columns,
                  call.grad_input.defined() ? call.grad_input.mutable_data_ptr() : nullptr,
                  is_bfloat16 ? 0x1p-7F : 0x1p-10F};
  // How the rows are parted depends on their number alone.
  const int64_t parts = std::clamp<int64_t>(call.rows / kLeastRows, 1, kMostParts);
  std::vector<float> sums(static_cast<size_t>(parts) * 2 * width);
  at::parallel_for(0, parts, std::max<int64_t>(1, parts * kGrain / std::max<int64_t>(1, call.rows * columns)),
                   [&](int64_t first, int64_t last) {
                     std::vector<float> rows(2 * width);
                     for (int64_t part = first; part < last; ++part) {
                       float* const own = sums.data() + static_cast<size_t>(part) * 2 * width;
                       const Buffers buffers{rows.data(), rows.data() + width, own, own + width};
                       const int64_t begin = call.rows * part / parts;
                       const int64_t end = call.rows * (part + 1) / parts;
                       if (is_bfloat16) {
                         differentiate_rows(static_cast<BFloat16*>(nullptr), task, begin, end, buffers);
                       } else {
                         differentiate_rows(static_cast<Float16*>(nullptr), task, begin, end, buffers);
                       }
                     }
                   });
  const auto add_up = [&](const at::Tensor& gradient, size_t offset) {
    if (!gradient.defined()) return;
    auto* const result = gradient.mutable_data_ptr<float>();
    std::fill_n(result, columns, 0.0F);
    for (int64_t part = 0; part < parts; ++part) {
      const float* const own = sums.data() + static_cast<size_t>(part) * 2 * width + offset;
      for (size_t i = 0; i < width; ++i) result[i] += own[i];
    }
  };
  add_up(call.grad_weight, 0);
  add_up(call.grad_bias, width);
}

}  // namespace

namespace {

using MaybeTensor = std::optional<at::Tensor>;

const at::Tensor& or_undefined(const MaybeTensor& tensor) {
  static const auto* const undefined = new at::Tensor();
  return tensor ? *tensor : *undefined;
}

// The dtype of statistics: the parameters' when an input of 16 bits comes with parameters of 32.
at::ScalarType statistics(const at::Tensor& input, std::initializer_list<MaybeTensor> parameters) {
  const auto* given = std::find_if(parameters.begin(), parameters.end(), is_given);
  return given != parameters.end() ? (*given)->scalar_type() : input.scalar_type();
}

bool has_channels(const MaybeTensor& tensor, int64_t channels) {
  return !is_given(tensor) || (tensor->dim() == 1 && tensor->size(0) == channels);
}

TensorShape as_input(const at::Tensor& input) {
  return like(input, input.sizes(), input.suggest_memory_format());
}

}  // namespace

// Layer normalization: the statistics have the dtype of the input, as the device's meta functions promise.

ThreeKnownShapes layer_norm_shape(const at::Tensor& input, at::IntArrayRef normalized_shape, const MaybeTensor& weight,
                                  const MaybeTensor& bias, double /*eps*/) {
  at::native::_check_layer_norm_inputs(input, normalized_shape, or_undefined(weight), or_undefined(bias));
  c10::DimVector rows(input.sizes());
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normalized_shape.size()), rows.end(), 1);
  return {like(input), like(input, rows), like(input, rows)};
}

void layer_norm_out(const at::Tensor& input, at::IntArrayRef /*normalized_shape*/, at::OptionalTensorRef weight,
                    at::OptionalTensorRef bias, double eps, at::Tensor& out, at::Tensor& mean, at::Tensor& rstd) {
  const at::Tensor& gamma = weight.getTensorRef();
  const at::Tensor& beta = bias.getTensorRef();
  const bool is_mixed = at::native::is_mixed_type(input, gamma, beta);
  if (is_mixed) at::native::check_mixed_data_type(input, gamma, beta);
  const int64_t rows = mean.numel();
  if (rows == 0) return;
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.expect_contiguous() : c10::MaybeOwned<at::Tensor>::borrowed(tensor);
  };
  const auto run = [&](at::Tensor& mean_out, at::Tensor& rstd_out) {
    at::native::LayerNormKernel(at::kCPU, *dense(input), *dense(gamma), *dense(beta), rows, input.numel() / rows, eps,
                                &out, &mean_out, &rstd_out);
  };
  if (!is_mixed) return run(mean, rstd);
  at::Tensor wide_mean = mean.to(at::kFloat);
  at::Tensor wide_rstd = rstd.to(at::kFloat);
  run(wide_mean, wide_rstd);
  mean.copy_(wide_mean);
  rstd.copy_(wide_rstd);
}

ThreeShapes layer_norm_backward_shape(const at::Tensor& /*grad_out*/, const at::Tensor& input,
                                      at::IntArrayRef normalized_shape, const at::Tensor& /*mean*/,
                                      const at::Tensor& /*rstd*/, const MaybeTensor& weight, const MaybeTensor& bias,
                                      std::array<bool, 3> output_mask) {
  at::native::_check_layer_norm_inputs(input, normalized_shape, or_undefined(weight), or_undefined(bias));
  if ((output_mask[1] && !is_given(weight)) || (output_mask[2] && !is_given(bias))) return std::nullopt;
  return {output_mask[0] ? like(input) : absent(), output_mask[1] ? like(*weight) : absent(),
          output_mask[2] ? like(*bias) : absent()};
}

// For 16-bit inputs see Note [Float32 accumulation] in InFloat32.h. The CPU kernel wants statistics of the parameters'
// dtype.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& input,
                                                                   at::IntArrayRef normalized_shape,
                                                                   const at::Tensor& mean, const at::Tensor& rstd,
                                                                   const MaybeTensor& weight, const MaybeTensor& bias,
                                                                   std::array<bool, 3> output_mask) {
  const auto dtype = statistics(input, {weight, bias});
  const auto fits = [&](const MaybeTensor& parameter) {
    return !is_given(parameter) || parameter->scalar_type() == dtype;
  };
  const bool is_ours = at::isReducedFloatingType(input.scalar_type()) && input.numel() > 0 &&
                       grad_out.scalar_type() == input.scalar_type() && grad_out.sizes() == input.sizes() &&
                       (dtype == input.scalar_type() || dtype == at::kFloat) && fits(weight) && fits(bias);
  if (!is_ours) {
    return at::native::layer_norm_backward_cpu(grad_out, input, normalized_shape, mean.to(dtype), rstd.to(dtype),
                                               weight, bias, output_mask);
  }
  const int64_t columns = c10::multiply_integers(normalized_shape);
  const at::Tensor grad_input = output_mask[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : at::Tensor();
  const auto parameter = [&](bool is_wanted) {
    return is_wanted ? at::empty(normalized_shape, input.options().dtype(at::kFloat)) : at::Tensor();
  };
  const at::Tensor grad_weight = parameter(output_mask[1]);
  const at::Tensor grad_bias = parameter(output_mask[2]);
  const auto dense = [&](const at::Tensor& statistic) { return statistic.to(input.scalar_type()).contiguous(); };
  layer_norm_gradients({grad_out.contiguous(), input.contiguous(), dense(mean), dense(rstd),
                        is_given(weight) ? weight->to(at::kFloat).contiguous() : at::Tensor(), input.numel() / columns,
                        columns, grad_input, grad_weight, grad_bias});
  const auto rounded = [&](const at::Tensor& gradient) { return gradient.defined() ? gradient.to(dtype) : gradient; };
  return {grad_input, rounded(grad_weight), rounded(grad_bias)};
}

// Group normalization

ThreeShapes group_norm_shape(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t N,
                             int64_t C, int64_t HxW, int64_t group, double /*eps*/) {
  if (group <= 0 || C % group != 0 || input.numel() != N * C * HxW || !has_channels(weight, C) ||
      !has_channels(bias, C) || !input.is_contiguous(input.suggest_memory_format())) {
    return std::nullopt;
  }
  const TensorShape statistic = like(input, {N, group}, statistics(input, {weight, bias}));
  return {as_input(input), statistic, statistic};
}

ThreeShapes group_norm_backward_shape(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
                                      const at::Tensor& rstd, const MaybeTensor& weight, int64_t N, int64_t C,
                                      int64_t HxW, int64_t group, std::array<bool, 3> output_mask) {
  if (group <= 0 || C % group != 0 || input.numel() != N * C * HxW || grad_out.numel() != input.numel() ||
      mean.numel() != N * group || rstd.numel() != N * group || !has_channels(weight, C) ||
      ((output_mask[1] || output_mask[2]) && !is_given(weight))) {
    return std::nullopt;
  }
  const TensorShape parameter = like(input, {C}, statistics(input, {weight}));
  return {output_mask[0] ? as_input(input) : absent(), output_mask[1] ? parameter : absent(),
          output_mask[2] ? parameter : absent()};
}

}  // namespace torch_mtia

namespace at::native {
namespace {

using torch_mtia::has_channels;
using torch_mtia::is_given;
using torch_mtia::MaybeTensor;
using torch_mtia::or_undefined;
using torch_mtia::own;
using torch_mtia::own_in_place;
using torch_mtia::statistics;

constexpr uint64_t kBatchNormWeight = 4;  // reads its input twice, and computes

}  // namespace

// Batch normalization: every forward operator is the same kernel with other ways to pass the running statistics.
//
// Statistics of 16-bit inputs are float32, as on CUDA. The CPU kernels keep them in the dtype of the parameters, so
// these are handed over in float32.

namespace {

MaybeTensor widened(const MaybeTensor& tensor) {
  return is_given(tensor) ? tensor->to(kFloat) : tensor;
}

// With a parameter in float32 the kernels keep the statistics so, whatever else is missing.
MaybeTensor widened_weight(const Tensor& input, const MaybeTensor& weight) {
  return is_given(weight) ? weight->to(kFloat) : at::ones({input.size(1)}, input.options().dtype(kFloat));
}

// Runs kernel(running_mean, running_var) in float32, and keeps what it makes of them if it changes them.
template <typename Kernel>
auto with_widened_statistics(const MaybeTensor& running_mean, const MaybeTensor& running_var, bool changes,
                             Kernel kernel) {
  const MaybeTensor mean = widened(running_mean);
  const MaybeTensor var = widened(running_var);
  auto results = kernel(mean, var);
  if (changes && is_given(mean)) running_mean->copy_(*mean);
  if (changes && is_given(var)) running_var->copy_(*var);
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
    const auto kernel = [&](const MaybeTensor& mean, const MaybeTensor& var) {
      return batch_norm_cpu(input, widened_weight(input, weight), widened(bias), mean, var, training, momentum, eps);
    };
    return with_widened_statistics(running_mean, running_var, /*changes=*/training, kernel);
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
  const auto kernel = [&](const MaybeTensor& mean, const MaybeTensor& var) {
    return batch_norm_update_stats_cpu(input.to(kFloat), mean, var, momentum);
  };
  return with_widened_statistics(running_mean, running_var, /*changes=*/true, kernel);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward_host(const Tensor& grad_out, const Tensor& input,
                                                            const MaybeTensor& weight, const MaybeTensor& running_mean,
                                                            const MaybeTensor& running_var,
                                                            const MaybeTensor& save_mean,
                                                            const MaybeTensor& save_invstd, bool train, double eps,
                                                            std::array<bool, 3> output_mask) {
  const bool is_wide = !isReducedFloatingType(input.scalar_type());
  const auto format = input.suggest_memory_format();
  if (is_wide && input.dim() >= 2 && input.numel() > 0 && grad_out.suggest_memory_format() == format &&
      grad_out.is_contiguous(format) && input.is_contiguous(format)) {
    // The stub, because the CPU kernel makes its result twice and only the first would take the output's memory.
    const auto options = input.options().dtype(statistics(input, {weight, running_mean, save_mean}));
    Tensor grad_input = output_mask[0] ? at::empty_like(input, format) : Tensor();
    Tensor grad_weight = output_mask[1] ? at::empty({input.size(1)}, options) : Tensor();
    Tensor grad_bias = output_mask[2] ? at::empty({input.size(1)}, options) : Tensor();
    batch_norm_cpu_backward_stub(kCPU, grad_input, grad_weight, grad_bias, grad_out, input, or_undefined(weight),
                                 or_undefined(running_mean), or_undefined(running_var), or_undefined(save_mean),
                                 or_undefined(save_invstd), train, eps);
    return {grad_input, grad_weight, grad_bias};
  }
  if (is_wide || input.dim() < 2) {
    return batch_norm_backward_cpu(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train,
                                   eps, output_mask);
  }
  return batch_norm_backward_cpu(grad_out, input, widened_weight(input, weight), widened(running_mean),
                                 widened(running_var), widened(save_mean), widened(save_invstd), train, eps,
                                 output_mask);
}

ScalarType batch_statistics(const Tensor& input, std::initializer_list<MaybeTensor> parameters) {
  return isReducedFloatingType(input.scalar_type()) ? kFloat : statistics(input, parameters);
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_on_host(const Tensor& input, const MaybeTensor& weight,
                                                      const MaybeTensor& bias, const MaybeTensor& running_mean,
                                                      const MaybeTensor& running_var, bool training, double momentum,
                                                      double eps) {
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  const auto shapes = [&]() -> torch_mtia::ThreeShapes {
    if (input.dim() < 2 || (!training && !(is_given(running_mean) && is_given(running_var))) ||
        !has_channels(weight, channels) || !has_channels(bias, channels) || !has_channels(running_mean, channels) ||
        !has_channels(running_var, channels)) {
      return std::nullopt;
    }
    const auto statistic =
        torch_mtia::like(input, {channels}, batch_statistics(input, {weight, bias, running_mean, running_var}));
    return {torch_mtia::as_input(input), statistic, statistic};
  };
  constexpr auto run = [](auto&&... arguments) { return batch_norm_host(arguments...); };
  const auto own_statistic = [&](const MaybeTensor& tensor) { return training ? own_in_place(tensor) : own(tensor); };
  auto [output, mean, invstd] = torch_mtia::make_with_cpu_kernel<3>(
      {"aten::native_batch_norm", kBatchNormWeight}, input.device(), shapes(), run, own(input), own(weight), own(bias),
      own_statistic(running_mean), own_statistic(running_var), own(training), own(momentum), own(eps));
  return {output, mean, invstd};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> batch_norm_mtia(const Tensor& input, const MaybeTensor& weight,
                                                   const MaybeTensor& bias, const MaybeTensor& running_mean,
                                                   const MaybeTensor& running_var, bool training, double momentum,
                                                   double eps) {
  return batch_norm_on_host(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> _batch_norm_legit_mtia(const Tensor& input, const MaybeTensor& weight,
                                                          const MaybeTensor& bias, Tensor& running_mean,
                                                          Tensor& running_var, bool training, double momentum,
                                                          double eps) {
  return batch_norm_on_host(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor> _batch_norm_legit_no_stats_mtia(const Tensor& input, const MaybeTensor& weight,
                                                                   const MaybeTensor& bias, bool training,
                                                                   double momentum, double eps) {
  return batch_norm_on_host(input, weight, bias, std::nullopt, std::nullopt, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> _batch_norm_with_update_mtia(const Tensor& input, const MaybeTensor& weight,
                                                                        const MaybeTensor& bias, Tensor& running_mean,
                                                                        Tensor& running_var, double momentum,
                                                                        double eps) {
  auto [output, save_mean, save_var] =
      batch_norm_on_host(input, weight, bias, running_mean, running_var, /*training=*/true, momentum, eps);
  return {output, save_mean, save_var, torch_mtia::empty_of(torch_mtia::like(input, {0}, kByte))};
}

std::tuple<Tensor, Tensor> batch_norm_update_stats_mtia(const Tensor& input, const MaybeTensor& running_mean,
                                                        const MaybeTensor& running_var, double momentum) {
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  const auto shapes = [&]() -> torch_mtia::TwoShapes {
    if (input.dim() < 2 || !has_channels(running_mean, channels) || !has_channels(running_var, channels)) {
      return std::nullopt;
    }
    const auto statistic = torch_mtia::like(input, {channels}, batch_statistics(input, {running_mean, running_var}));
    return {statistic, statistic};
  };
  constexpr auto run = [](auto&&... arguments) { return batch_norm_update_stats_host(arguments...); };
  auto [mean, var] = torch_mtia::make_with_cpu_kernel<2>(
      {"aten::batch_norm_update_stats", kBatchNormWeight}, input.device(), shapes(), run, own(input),
      own_in_place(running_mean), own_in_place(running_var), own(momentum));
  return {mean, var};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_backward_mtia(
    const Tensor& grad_out, const Tensor& input, const MaybeTensor& weight, const MaybeTensor& running_mean,
    const MaybeTensor& running_var, const MaybeTensor& save_mean, const MaybeTensor& save_invstd, bool train,
    double eps, std::array<bool, 3> output_mask) {
  const int64_t channels = input.dim() >= 2 ? input.size(1) : 0;
  const auto& mean = train ? save_mean : running_mean;
  const auto& var = train ? save_invstd : running_var;
  const auto shapes = [&]() -> torch_mtia::ThreeShapes {
    if (input.dim() < 2 || grad_out.sizes() != input.sizes() || !has_channels(weight, channels) || !is_given(mean) ||
        !is_given(var) || !has_channels(mean, channels) || !has_channels(var, channels)) {
      return std::nullopt;
    }
    const auto dtype = isReducedFloatingType(input.scalar_type())
                           ? statistics(input, {weight})
                           : statistics(input, {weight, running_mean, save_mean});
    const auto parameter = torch_mtia::like(input, {channels}, dtype);
    return {output_mask[0] ? torch_mtia::as_input(input) : torch_mtia::absent(),
            output_mask[1] ? parameter : torch_mtia::absent(), output_mask[2] ? parameter : torch_mtia::absent()};
  };
  constexpr auto run = [](auto&&... arguments) { return batch_norm_backward_host(arguments...); };
  auto [grad_input, grad_weight, grad_bias] = torch_mtia::make_with_cpu_kernel<3>(
      {"aten::native_batch_norm_backward", kBatchNormWeight}, input.device(), shapes(), run, own(grad_out), own(input),
      own(weight), own(running_mean), own(running_var), own(save_mean), own(save_invstd), own(train), own(eps),
      own(output_mask));
  return {grad_input, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward_mtia(const Tensor& grad_out, const Tensor& input,
                                                            const Tensor& weight, const MaybeTensor& running_mean,
                                                            const MaybeTensor& running_var,
                                                            const MaybeTensor& save_mean, const MaybeTensor& save_var,
                                                            bool update, double eps, std::array<bool, 3> output_mask,
                                                            const Tensor& /*reserve*/) {
  return native_batch_norm_backward_mtia(grad_out, input, weight, running_mean, running_var, save_mean, save_var,
                                         update, eps, output_mask);
}

}  // namespace at::native
