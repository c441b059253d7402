// Convolutions. PyTorch sends an out-of-tree device's convolutions, their arguments checked and brought to at least two
// spatial dimensions, to these two operators. The CPU chooses among oneDNN and its own kernels, all of which make their
// results themselves. Its own add up in the dtype of their operands: see Note [Float32 accumulation] in InFloat32.h.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <c10/core/SymIntArrayRef.h>

#include "BatchInvariant.h"
#include "CPUKernelLaunch.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::absent;
using torch_mtia::all_at_least;
using torch_mtia::like;
using torch_mtia::make_with_cpu_kernel;
using torch_mtia::own;

uint64_t cost(IntArrayRef input_side, IntArrayRef output_side, const Tensor& weight, bool transposed) {
  const auto positions = static_cast<uint64_t>(c10::multiply_integers(transposed ? input_side : output_side));
  const auto channels = static_cast<uint64_t>(std::max<int64_t>(weight.size(0), 1));
  return torch_mtia::cost_of_operations(2 * positions * (static_cast<uint64_t>(weight.numel()) / channels));
}

// The kernel that the CPU would choose for a convolution. It is chosen by metadata.
struct Choice {
  ConvBackend backend;
  MemoryFormat format;  // of the results

  bool accumulates_in_operands_dtype(const Tensor& input) const {
    const bool is_onednn = backend == ConvBackend::Mkldnn || backend == ConvBackend::MkldnnTranspose;
    return at::isReducedFloatingType(input.scalar_type()) && !is_onednn;
  }
};

Choice cpu_choice(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                  OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                  bool transposed, IntArrayRef output_padding, int64_t groups) {
  const torch_mtia::PooledAlias host_input(input, /*for_write=*/false);
  const torch_mtia::PooledAlias host_weight(weight, /*for_write=*/false);
  const torch_mtia::PooledAlias host_bias(bias.value_or(Tensor()), /*for_write=*/false);
  const auto symbolic = [](IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  const auto backend =
      select_conv_backend(host_input.get(), host_weight.get(), host_bias.get(), symbolic(stride), symbolic(padding),
                          symbolic(dilation), transposed, symbolic(output_padding), groups,
                          bias_sizes ? at::OptionalSymIntArrayRef(symbolic(*bias_sizes)) : std::nullopt);
  return {backend, _determine_backend_memory_format(host_input.get(), host_weight.get(), backend)};
}

// The sizes of a convolution's output. Empty: the CPU kernel may refuse the arguments, of which PyTorch's convolution
// has checked only some.
std::vector<int64_t> output_sizes(const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                                  IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  const int64_t spatial = input.dim() - 2;
  const auto has_all = [&](IntArrayRef values) { return static_cast<int64_t>(values.size()) == spatial; };
  if (spatial < 1 || weight.dim() != input.dim() || !has_all(stride) || !has_all(padding) || !has_all(dilation) ||
      !has_all(output_padding) || groups <= 0 || !all_at_least(stride, 1) || !all_at_least(dilation, 1) ||
      !all_at_least(weight.sizes().slice(2), 1)) {
    return {};
  }
  if (!transposed) return conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  for (size_t i = 0; i < output_padding.size(); ++i) {
    if (output_padding[i] >= std::max(stride[i], dilation[i])) return {};
  }
  auto sizes = conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride, dilation, groups);
  if (!all_at_least(IntArrayRef(sizes).slice(2), 1)) return {};
  return sizes;
}

torch_mtia::Order order() {
  return torch_mtia::is_batch_invariant() ? torch_mtia::Order::kFixed : torch_mtia::Order::kByThreads;
}

}  // namespace

Tensor convolution_overrideable_mtia(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                     IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                     IntArrayRef output_padding, int64_t groups) {
  torch_mtia::Shape shape = std::nullopt;
  uint64_t least_cost = 0;
  bool is_widened = false;
  const auto sizes = output_sizes(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  if (!sizes.empty()) {
    const Choice choice =
        cpu_choice(input, weight, bias, std::nullopt, stride, padding, dilation, transposed, output_padding, groups);
    shape = like(input, sizes, choice.format);
    least_cost = cost(input.sizes(), sizes, weight, transposed);
    is_widened = choice.accumulates_in_operands_dtype(input);
  }
  const auto make = [&](auto run) {
    return make_with_cpu_kernel<1>({"aten::convolution", 1, least_cost, false, order()}, input.device(), shape, run,
                                   own(input), own(weight), own(bias), own(stride), own(padding), own(dilation),
                                   own(transposed), own(output_padding), own(groups))[0];
  };
  if (torch_mtia::is_batch_invariant() && shape.known()) {
    return make(
        torch_mtia::in_float32([](auto&&... arguments) { return torch_mtia::convolve_in_order(arguments...); }));
  }
  constexpr auto run = [](auto&&... arguments) { return convolution(arguments...); };
  return is_widened ? make(torch_mtia::in_float32(run)) : make(run);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_overrideable_mtia(const Tensor& grad_output,
                                                                          const Tensor& input, const Tensor& weight,
                                                                          IntArrayRef stride, IntArrayRef padding,
                                                                          IntArrayRef dilation, bool transposed,
                                                                          IntArrayRef output_padding, int64_t groups,
                                                                          std::array<bool, 3> output_mask) {
  const std::array<int64_t, 1> bias_size{grad_output.dim() > 1 ? grad_output.size(1) : 0};
  const OptionalIntArrayRef bias_sizes = output_mask[2] ? OptionalIntArrayRef(bias_size) : std::nullopt;
  torch_mtia::ThreeShapes shapes = std::nullopt;
  uint64_t least_cost = 0;
  bool is_widened = false;
  const auto sizes = output_sizes(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  if (!sizes.empty() && grad_output.sizes() == sizes) {
    const Choice choice = cpu_choice(input, weight, std::nullopt, bias_sizes, stride, padding, dilation, transposed,
                                     output_padding, groups);
    shapes = {output_mask[0] ? like(input, input.sizes(), choice.format) : absent(),
              output_mask[1] ? like(weight, weight.sizes(), choice.format) : absent(),
              output_mask[2] ? like(grad_output, bias_size) : absent()};
    least_cost = 2 * cost(input.sizes(), grad_output.sizes(), weight, transposed);
    is_widened = choice.accumulates_in_operands_dtype(input);
  }
  const auto make = [&](auto run) {
    return make_with_cpu_kernel<3>({"aten::convolution_backward", 1, least_cost, false, order()}, input.device(),
                                   shapes, run, own(grad_output), own(input), own(weight), own(bias_sizes), own(stride),
                                   own(padding), own(dilation), own(transposed), own(output_padding), own(groups),
                                   own(output_mask));
  };
  if (torch_mtia::is_batch_invariant() && shapes.known()) {
    auto [grad_input, grad_weight, grad_bias] = make(torch_mtia::in_float32(
        [](auto&&... arguments) { return torch_mtia::differentiate_convolution_in_order(arguments...); }));
    return {grad_input, grad_weight, grad_bias};
  }
  constexpr auto run = [](auto&&... arguments) { return convolution_backward(arguments...); };
  auto [grad_input, grad_weight, grad_bias] = is_widened ? make(torch_mtia::in_float32(run)) : make(run);
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace at::native
