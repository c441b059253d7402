// Poolings that the table cannot say, their inverses, and the rearrangement of windows as columns.
#include <ATen/native/Pool.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool2d_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_native.h>
#include <ATen/ops/_adaptive_avg_pool3d_native.h>
#include <ATen/ops/avg_pool3d_native.h>
#include <ATen/ops/col2im_native.h>
#include <ATen/ops/fractional_max_pool3d_backward_native.h>
#include <ATen/ops/im2col_native.h>
#include <ATen/ops/max_pool3d_with_indices_backward_native.h>
#include <ATen/ops/max_pool3d_with_indices_native.h>
#include <ATen/ops/max_unpool2d_native.h>
#include <ATen/ops/max_unpool3d_native.h>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::new_output;
using torch_mtia::new_output_like;

bool all_at_least(IntArrayRef values, int64_t least) {
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value >= least; });
}

// Images with or without a batch dimension, of which only that one may be empty.
bool are_images(const Tensor& tensor, int64_t spatial_dims) {
  const int64_t batch_dims = tensor.dim() - spatial_dims - 1;
  return (batch_dims == 0 || batch_dims == 1) && all_at_least(tensor.sizes().slice(batch_dims), 1);
}

// The sizes of `tensor` with the last ones replaced.
DimVector with_spatial_sizes(const Tensor& tensor, IntArrayRef spatial) {
  DimVector sizes(tensor.sizes());
  std::copy(spatial.begin(), spatial.end(), sizes.end() - static_cast<std::ptrdiff_t>(spatial.size()));
  return sizes;
}

// One value stands for all dimensions, none for the fallback's.
DimVector expand_parameter(IntArrayRef values, size_t dims, IntArrayRef absent = {}) {
  if (values.empty()) return DimVector(absent);
  return values.size() == 1 ? DimVector(dims, values[0]) : DimVector(values);
}

}  // namespace

// Adaptive average pooling

Tensor _adaptive_avg_pool2d_mtia(const Tensor& self, IntArrayRef output_size) {
  return HostFunction<&adaptive_avg_pool2d_cpu>::call(
      {"aten::_adaptive_avg_pool2d"}, are_images(self, 2) && output_size.size() == 2 && all_at_least(output_size, 0),
      [&] { return new_output(with_spatial_sizes(self, output_size), self.options(), self.suggest_memory_format()); },
      self, output_size);
}

Tensor _adaptive_avg_pool2d_backward_mtia(const Tensor& grad_output, const Tensor& self) {
  return HostFunction<&adaptive_avg_pool2d_backward_cpu>::call(
      {"aten::_adaptive_avg_pool2d_backward"},
      are_images(self, 2) && are_images(grad_output, 2) && grad_output.dim() == self.dim() &&
          grad_output.scalar_type() == self.scalar_type(),
      [&] { return new_output_like(self, self.suggest_memory_format()); }, grad_output, self);
}

Tensor _adaptive_avg_pool3d_mtia(const Tensor& self, IntArrayRef output_size) {
  return HostFunction<&adaptive_avg_pool3d_cpu>::call(
      {"aten::_adaptive_avg_pool3d"}, are_images(self, 3) && output_size.size() == 3 && all_at_least(output_size, 0),
      [&] { return new_output(with_spatial_sizes(self, output_size), self.options()); }, self, output_size);
}

Tensor _adaptive_avg_pool3d_backward_mtia(const Tensor& grad_output, const Tensor& self) {
  return HostFunction<&adaptive_avg_pool3d_backward_cpu>::call(
      {"aten::_adaptive_avg_pool3d_backward"},
      are_images(self, 3) && are_images(grad_output, 3) && grad_output.dim() == self.dim() &&
          grad_output.scalar_type() == self.scalar_type(),
      [&] { return new_output_like(self); }, grad_output, self);
}

// Average pooling of volumes: the CPU's kernel writes as if `out` were contiguous.

TORCH_IMPL_FUNC(avg_pool3d_out_mtia)
(const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding, bool ceil_mode,
 bool count_include_pad, std::optional<int64_t> divisor_override, const Tensor& out) {
  using torch_mtia::keep;
  const Tensor result = out.is_contiguous() ? out : new_output_like(out, MemoryFormat::Contiguous);
  constexpr auto run = [](const auto&... arguments) {
    torch_mtia::StructuredCall<structured_avg_pool3d_out_cpu, 1>::run(arguments...);
  };
  torch_mtia::run_on_host({"aten::avg_pool3d", 8, 0}, out.device(), run, keep(self), keep(kernel_size), keep(stride),
                          keep(padding), keep(ceil_mode), keep(count_include_pad), keep(divisor_override),
                          torch_mtia::keep_output(result));
  if (!result.is_same(out)) out.copy_(result);
}

// Maximum pooling of volumes, and the way back

namespace {

// Empty: the CPU kernel refuses the arguments.
DimVector pooled_sizes(const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                       IntArrayRef dilation, bool ceil_mode) {
  const auto given = [](IntArrayRef values) { return values.size() == 1 || values.size() == 3; };
  if (!are_images(self, 3) || !given(kernel_size) || !(stride.empty() || given(stride)) || !given(padding) ||
      !given(dilation) || !all_at_least(kernel_size, 1) || !all_at_least(stride, 1) || !all_at_least(padding, 0) ||
      !all_at_least(dilation, 1)) {
    return {};
  }
  const DimVector kernel = expand_parameter(kernel_size, 3);
  const DimVector step = expand_parameter(stride, 3, kernel);
  const DimVector pad = expand_parameter(padding, 3);
  const DimVector spread = expand_parameter(dilation, 3);
  DimVector spatial(3);
  for (size_t i = 0; i < 3; ++i) {
    if (pad[i] > ((kernel[i] - 1) * spread[i] + 1) / 2) return {};
    spatial[i] =
        pooling_output_shape(self.size(static_cast<int64_t>(i) - 3), kernel[i], pad[i], step[i], spread[i], ceil_mode);
  }
  return all_at_least(spatial, 1) ? with_spatial_sizes(self, spatial) : DimVector();
}

}  // namespace

std::tuple<Tensor, Tensor> max_pool3d_with_indices_mtia(const Tensor& self, IntArrayRef kernel_size, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
  const DimVector sizes = pooled_sizes(self, kernel_size, stride, padding, dilation, ceil_mode);
  auto [output, indices] = HostFunction<&max_pool3d_with_indices_cpu>::call(
      {"aten::max_pool3d_with_indices", 4}, !sizes.empty(),
      [&] {
        const auto format = self.suggest_memory_format();
        return std::array<Tensor, 2>{new_output(sizes, self.options(), format),
                                     new_output(sizes, self.options().dtype(kLong), format)};
      },
      self, kernel_size, stride, padding, dilation, ceil_mode);
  return {output, indices};
}

Tensor max_pool3d_with_indices_backward_mtia(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size,
                                             IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                             bool ceil_mode, const Tensor& indices) {
  const DimVector sizes = pooled_sizes(self, kernel_size, stride, padding, dilation, ceil_mode);
  return HostFunction<&max_pool3d_with_indices_backward_cpu>::call(
      {"aten::max_pool3d_with_indices_backward", 2},
      !sizes.empty() && grad_output.sizes() == sizes && indices.sizes() == sizes && indices.scalar_type() == kLong,
      [&] { return new_output_like(self, self.suggest_memory_format()); }, grad_output, self, kernel_size, stride,
      padding, dilation, ceil_mode, indices);
}

Tensor fractional_max_pool3d_backward_mtia(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel_size,
                                           IntArrayRef output_size, const Tensor& indices) {
  return HostFunction<&fractional_max_pool3d_backward_cpu>::call(
      {"aten::fractional_max_pool3d_backward", 2},
      are_images(self, 3) && kernel_size.size() == 3 && output_size.size() == 3 && grad_output.dim() == self.dim() &&
          grad_output.sizes() == with_spatial_sizes(self, output_size) && indices.sizes() == grad_output.sizes() &&
          indices.scalar_type() == kLong,
      [&] { return new_output_like(self); }, grad_output, self, kernel_size, output_size, indices);
}

Tensor max_unpool2d_mtia(const Tensor& self, const Tensor& indices, IntArrayRef output_size) {
  return HostFunction<&max_unpooling2d_forward_cpu>::call(
      {"aten::max_unpool2d", 2},
      are_images(self, 2) && output_size.size() == 2 && all_at_least(output_size, 0) &&
          indices.sizes() == self.sizes() && indices.scalar_type() == kLong,
      [&] { return new_output(with_spatial_sizes(self, output_size), self.options(), self.suggest_memory_format()); },
      self, indices, output_size);
}

Tensor max_unpool3d_mtia(const Tensor& self, const Tensor& indices, IntArrayRef output_size, IntArrayRef stride,
                         IntArrayRef padding) {
  return HostFunction<&max_unpooling3d_forward_cpu>::call(
      {"aten::max_unpool3d", 2},
      are_images(self, 3) && output_size.size() == 3 && all_at_least(output_size, 0) && stride.size() == 3 &&
          padding.size() == 3 && all_at_least(stride, 1) && indices.sizes() == self.sizes() &&
          indices.scalar_type() == kLong,
      [&] { return new_output(with_spatial_sizes(self, output_size), self.options()); }, self, indices, output_size,
      stride, padding);
}

// Windows as columns, and back

namespace {

struct Windows {
  IntArrayRef kernel_size;
  IntArrayRef dilation;
  IntArrayRef padding;
  IntArrayRef stride;

  bool valid() const {
    return kernel_size.size() == 2 && dilation.size() == 2 && padding.size() == 2 && stride.size() == 2 &&
           all_at_least(kernel_size, 1) && all_at_least(dilation, 1) && all_at_least(padding, 0) &&
           all_at_least(stride, 1);
  }
  int64_t elements() const { return kernel_size[0] * kernel_size[1]; }
  // In an image of this size; 0: a window is larger than the image.
  int64_t count(IntArrayRef image) const {
    int64_t result = 1;
    for (size_t i = 0; i < 2; ++i) {
      const int64_t room = image[i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1;
      result *= room < 0 ? 0 : room / stride[i] + 1;
    }
    return result;
  }
};

}  // namespace

Tensor im2col_mtia(const Tensor& self, IntArrayRef kernel_size, IntArrayRef dilation, IntArrayRef padding,
                   IntArrayRef stride) {
  const Windows windows{kernel_size, dilation, padding, stride};
  const bool fits = are_images(self, 2) && windows.valid() && windows.count(self.sizes().slice(self.dim() - 2)) > 0;
  return HostFunction<&im2col_cpu>::call(
      {"aten::im2col"}, fits,
      [&] {
        DimVector sizes(self.sizes().slice(0, self.dim() - 3));
        sizes.push_back(self.size(-3) * windows.elements());
        sizes.push_back(windows.count(self.sizes().slice(self.dim() - 2)));
        return new_output(sizes, self.options());
      },
      self, kernel_size, dilation, padding, stride);
}

Tensor col2im_mtia(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel_size, IntArrayRef dilation,
                   IntArrayRef padding, IntArrayRef stride) {
  const Windows windows{kernel_size, dilation, padding, stride};
  const bool fits = are_images(self, 1) && windows.valid() && output_size.size() == 2 &&
                    self.size(-2) % windows.elements() == 0 && windows.count(output_size) == self.size(-1) &&
                    all_at_least(output_size, 1);
  return HostFunction<&col2im_cpu>::call(
      {"aten::col2im"}, fits,
      [&] {
        DimVector sizes(self.sizes().slice(0, self.dim() - 2));
        sizes.push_back(self.size(-2) / windows.elements());
        sizes.append(output_size.begin(), output_size.end());
        return new_output(sizes, self.options());
      },
      self, output_size, kernel_size, dilation, padding, stride);
}

}  // namespace at::native
