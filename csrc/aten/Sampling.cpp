// Sampling of images at given places: grids, and paddings that mirror or repeat the border.
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/Padding.h>
#include <ATen/ops/grid_sampler_2d_backward_native.h>
#include <ATen/ops/grid_sampler_2d_native.h>
#include <ATen/ops/grid_sampler_3d_backward_native.h>
#include <ATen/ops/grid_sampler_3d_native.h>
#include <ATen/ops/reflection_pad2d_backward_native.h>
#include <ATen/ops/reflection_pad2d_native.h>
#include <ATen/ops/reflection_pad3d_backward_native.h>
#include <ATen/ops/reflection_pad3d_native.h>
#include <ATen/ops/replication_pad2d_backward_native.h>
#include <ATen/ops/replication_pad2d_native.h>
#include <ATen/ops/replication_pad3d_backward_native.h>
#include <ATen/ops/replication_pad3d_native.h>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::kSamplingWeight;
using torch_mtia::new_output;
using torch_mtia::new_output_like;

Tensor new_samples(const Tensor& input, const Tensor& grid) {
  DimVector sizes(grid.sizes());
  sizes.pop_back();
  sizes.insert(sizes.begin() + 1, input.size(1));
  return new_output(sizes, input.options());
}

std::array<Tensor, 2> new_grads(const Tensor& input, const Tensor& grid, std::array<bool, 2> output_mask) {
  return {output_mask[0] ? new_output_like(input) : Tensor(), output_mask[1] ? new_output_like(grid) : Tensor()};
}

}  // namespace

Tensor grid_sampler_2d_mtia(const Tensor& input, const Tensor& grid, int64_t interpolation_mode, int64_t padding_mode,
                            bool align_corners) {
  check_grid_sampler_common(input, grid);
  check_grid_sampler_2d(input, grid);
  return HostFunction<&grid_sampler_2d_cpu>::call(
      {"aten::grid_sampler_2d", kSamplingWeight}, true, [&] { return new_samples(input, grid); }, input, grid,
      interpolation_mode, padding_mode, align_corners);
}

std::tuple<Tensor, Tensor> grid_sampler_2d_backward_mtia(const Tensor& grad_output, const Tensor& input,
                                                         const Tensor& grid, int64_t interpolation_mode,
                                                         int64_t padding_mode, bool align_corners,
                                                         std::array<bool, 2> output_mask) {
  check_grid_sampler_common(input, grid);
  check_grid_sampler_2d(input, grid);
  // Both gradients are one computation; the CPU kernel makes the grid's in any case.
  auto [grad_input, grad_grid] = HostFunction<&grid_sampler_2d_backward_cpu>::call(
      {"aten::grid_sampler_2d_backward", 2 * kSamplingWeight}, grad_output.dim() == 4,
      [&] { return new_grads(input, grid, output_mask); }, grad_output, input, grid, interpolation_mode, padding_mode,
      align_corners, output_mask);
  return {grad_input, grad_grid};
}

Tensor grid_sampler_3d_mtia(const Tensor& input, const Tensor& grid, int64_t interpolation_mode, int64_t padding_mode,
                            bool align_corners) {
  check_grid_sampler_common(input, grid);
  check_grid_sampler_3d(input, grid, interpolation_mode);
  return HostFunction<&grid_sampler_3d_cpu>::call(
      {"aten::grid_sampler_3d", kSamplingWeight}, true, [&] { return new_samples(input, grid); }, input, grid,
      interpolation_mode, padding_mode, align_corners);
}

std::tuple<Tensor, Tensor> grid_sampler_3d_backward_mtia(const Tensor& grad_output, const Tensor& input,
                                                         const Tensor& grid, int64_t interpolation_mode,
                                                         int64_t padding_mode, bool align_corners,
                                                         std::array<bool, 2> output_mask) {
  check_grid_sampler_common(input, grid);
  check_grid_sampler_3d(input, grid, interpolation_mode);
  auto [grad_input, grad_grid] = HostFunction<&grid_sampler_3d_backward_cpu>::call(
      {"aten::grid_sampler_3d_backward", 2 * kSamplingWeight}, grad_output.dim() == 5,
      [&] { return new_grads(input, grid, output_mask); }, grad_output, input, grid, interpolation_mode, padding_mode,
      align_corners, output_mask);
  return {grad_input, grad_grid};
}

namespace {

// Sizes after padding; the padding comes in pairs, last dimension first. Empty: the CPU kernel refuses the arguments.
DimVector padded_sizes(const Tensor& self, IntArrayRef padding, int64_t dims, bool reflects) {
  if (static_cast<int64_t>(padding.size()) != 2 * dims || (self.dim() != dims + 1 && self.dim() != dims + 2)) return {};
  DimVector sizes(self.sizes());
  for (int64_t dim = self.dim() == dims + 2 ? 1 : 0; dim < self.dim(); ++dim) {
    if (self.size(dim) == 0) return {};
  }
  for (int64_t i = 0; i < dims; ++i) {
    const int64_t before = padding[static_cast<size_t>(2 * i)];
    const int64_t after = padding[static_cast<size_t>(2 * i + 1)];
    int64_t& size = sizes[static_cast<size_t>(self.dim() - 1 - i)];
    if (reflects && (before >= size || after >= size)) return {};
    size += before + after;
    if (size < 1) return {};
  }
  return sizes;
}

template <auto Kernel>
Tensor pad_backward(const torch_mtia::Operator& op, const Tensor& grad_output, const Tensor& self, IntArrayRef padding,
                    int64_t dims, bool reflects) {
  const DimVector sizes = padded_sizes(self, padding, dims, reflects);
  return HostFunction<Kernel>::call(
      {op}, !sizes.empty() && grad_output.sizes() == sizes,
      [&] { return new_output_like(self, self.suggest_memory_format()); }, grad_output, self, padding);
}

// ATen's CPU operators give a result the layout of the input when they run. That is too late for a device tensor, which
// has its strides when the call returns: so at the call.
void take_layout(const Tensor& result, const Tensor& input) {
  if (result.is_contiguous()) result.resize_(result.sizes(), input.suggest_memory_format());
}

template <auto& Kernel>
void pad(const torch_mtia::Operator& op, const Tensor& self, IntArrayRef padding, const Tensor& out) {
  take_layout(out, self);
  constexpr auto run = [](const Tensor& out, const Tensor& self, IntArrayRef padding) {
    Kernel(kCPU, out, self, padding);
  };
  torch_mtia::run_on_host({op}, out.device(), run, torch_mtia::keep_output(out), torch_mtia::keep(self),
                          torch_mtia::keep(padding));
}

}  // namespace

TORCH_IMPL_FUNC(replication_pad2d_out_mtia)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
  pad<replication_pad2d_kernel>("aten::replication_pad2d", self, padding, out);
}

TORCH_IMPL_FUNC(replication_pad3d_out_mtia)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
  pad<replication_pad3d_kernel>("aten::replication_pad3d", self, padding, out);
}

TORCH_IMPL_FUNC(reflection_pad3d_out_mtia)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
  pad<reflection_pad3d_kernel>("aten::reflection_pad3d", self, padding, out);
}

TORCH_IMPL_FUNC(reflection_pad3d_backward_out_mtia)
(const Tensor& grad_output, const Tensor& self, IntArrayRef padding, const Tensor& grad_input) {
  if (grad_output.numel() == 0) return;
  take_layout(grad_input, self);
  constexpr auto run = [](const Tensor& grad_input, const Tensor& grad_output, IntArrayRef padding) {
    grad_input.zero_();
    reflection_pad3d_backward_kernel(kCPU, grad_input, grad_output, padding);
  };
  torch_mtia::run_on_host({"aten::reflection_pad3d_backward"}, grad_input.device(), run,
                          torch_mtia::keep_output(grad_input), torch_mtia::keep(grad_output),
                          torch_mtia::keep(padding));
}

Tensor reflection_pad2d_mtia(const Tensor& self, IntArrayRef padding) {
  const DimVector sizes = padded_sizes(self, padding, 2, /*reflects=*/true);
  return HostFunction<&reflection_pad2d_cpu>::call(
      {"aten::reflection_pad2d"}, !sizes.empty(),
      [&] { return new_output(sizes, self.options(), self.suggest_memory_format()); }, self, padding);
}

Tensor reflection_pad2d_backward_mtia(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  return pad_backward<&reflection_pad2d_backward_cpu>("aten::reflection_pad2d_backward", grad_output, self, padding, 2,
                                                      /*reflects=*/true);
}

Tensor replication_pad2d_backward_mtia(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  return pad_backward<&replication_pad2d_backward_cpu>("aten::replication_pad2d_backward", grad_output, self, padding,
                                                       2, /*reflects=*/false);
}

Tensor replication_pad3d_backward_mtia(const Tensor& grad_output, const Tensor& self, IntArrayRef padding) {
  return pad_backward<&replication_pad3d_backward_cpu>("aten::replication_pad3d_backward", grad_output, self, padding,
                                                       3, /*reflects=*/false);
}

}  // namespace at::native
