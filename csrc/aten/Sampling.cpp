// Sampling of images at given places: shapes of grids, and of paddings that mirror or repeat the border.
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/Padding.h>

#include "CPUKernels.h"
#include "InFloat32.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

Shape samples(const at::Tensor& input, const at::Tensor& grid) {
  c10::DimVector sizes(grid.sizes());
  sizes.pop_back();
  sizes.insert(sizes.begin() + 1, input.size(1));
  return like(input, sizes);
}

TwoShapes gradients(const at::Tensor& input, const at::Tensor& grid, std::array<bool, 2> output_mask) {
  return {output_mask[0] ? like(input) : absent(), output_mask[1] ? like(grid) : absent()};
}

// Sizes after padding; the padding comes in pairs, last dimension first. Empty: the CPU kernel refuses the arguments.
c10::DimVector padded_sizes(const at::Tensor& self, at::IntArrayRef padding, int64_t dims, bool reflects) {
  if (static_cast<int64_t>(padding.size()) != 2 * dims || (self.dim() != dims + 1 && self.dim() != dims + 2)) return {};
  c10::DimVector sizes(self.sizes());
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

Shape pad_backward(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef padding, int64_t dims,
                   bool reflects) {
  const auto sizes = padded_sizes(self, padding, dims, reflects);
  if (sizes.empty() || grad_output.sizes() != sizes) return std::nullopt;
  return like(self, self.sizes(), self.suggest_memory_format());
}

}  // namespace

Shape grid_sampler_2d_shape(const at::Tensor& input, const at::Tensor& grid, int64_t /*interpolation_mode*/,
                            int64_t /*padding_mode*/, bool /*align_corners*/) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_2d(input, grid);
  return samples(input, grid);
}

TwoShapes grid_sampler_2d_backward_shape(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& grid,
                                         int64_t /*interpolation_mode*/, int64_t /*padding_mode*/,
                                         bool /*align_corners*/, std::array<bool, 2> output_mask) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_2d(input, grid);
  if (grad_output.dim() != 4) return std::nullopt;
  return gradients(input, grid, output_mask);
}

Shape grid_sampler_3d_shape(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode,
                            int64_t /*padding_mode*/, bool /*align_corners*/) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_3d(input, grid, interpolation_mode);
  return samples(input, grid);
}

TwoShapes grid_sampler_3d_backward_shape(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& grid,
                                         int64_t interpolation_mode, int64_t /*padding_mode*/, bool /*align_corners*/,
                                         std::array<bool, 2> output_mask) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_3d(input, grid, interpolation_mode);
  if (grad_output.dim() != 5) return std::nullopt;
  return gradients(input, grid, output_mask);
}

Shape reflection_pad2d_shape(const at::Tensor& self, at::IntArrayRef padding) {
  const auto sizes = padded_sizes(self, padding, 2, /*reflects=*/true);
  if (sizes.empty()) return std::nullopt;
  return like(self, sizes, self.suggest_memory_format());
}

Shape reflection_pad2d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef padding) {
  return pad_backward(grad_output, self, padding, 2, /*reflects=*/true);
}

Shape replication_pad2d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef padding) {
  return pad_backward(grad_output, self, padding, 2, /*reflects=*/false);
}

Shape replication_pad3d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef padding) {
  return pad_backward(grad_output, self, padding, 3, /*reflects=*/false);
}

// ATen's CPU operators give a result the layout of the input when they run. That is too late for a device tensor, which
// has its strides when the call returns: so at the call, and what runs are the kernels below these operators.
void take_layout(const at::Tensor& self, at::IntArrayRef /*padding*/, const at::Tensor& out) {
  if (out.is_contiguous()) out.resize_(out.sizes(), self.suggest_memory_format());
}

void take_layout_of_input(const at::Tensor& /*grad_output*/, const at::Tensor& self, at::IntArrayRef padding,
                          const at::Tensor& grad_input) {
  take_layout(self, padding, grad_input);
}

void replication_pad2d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out) {
  at::native::replication_pad2d_kernel(at::kCPU, out, self, padding);
}

void replication_pad3d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out) {
  at::native::replication_pad3d_kernel(at::kCPU, out, self, padding);
}

void reflection_pad3d_kernel(const at::Tensor& self, at::IntArrayRef padding, const at::Tensor& out) {
  at::native::reflection_pad3d_kernel(at::kCPU, out, self, padding);
}

void reflection_pad3d_backward_kernel(const at::Tensor& grad_output, const at::Tensor& /*self*/,
                                      at::IntArrayRef padding, const at::Tensor& grad_input) {
  grad_input.zero_();
  if (grad_output.numel() == 0) return;
  const auto run = in_float32([](const at::Tensor& result, const at::Tensor& grad, at::IntArrayRef padding) {
    at::native::reflection_pad3d_backward_kernel(at::kCPU, result, grad, padding);
  });
  run(const_cast<at::Tensor&>(grad_input), grad_output, padding);
}

}  // namespace torch_mtia
