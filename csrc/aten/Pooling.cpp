// Poolings: shapes of theirs, of their inverses, and of windows as columns.
#include <ATen/native/Pool.h>
#include <ATen/ops/avg_pool3d_native.h>
#include <ATen/ops/empty_like.h>

#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

// The sizes of `tensor` with the last ones replaced.
c10::DimVector with_spatial_sizes(const at::Tensor& tensor, at::IntArrayRef spatial) {
  c10::DimVector sizes(tensor.sizes());
  std::copy(spatial.begin(), spatial.end(), sizes.end() - static_cast<std::ptrdiff_t>(spatial.size()));
  return sizes;
}

bool fit_adaptive_pool(const at::Tensor& self, at::IntArrayRef output_size, size_t dims) {
  return are_images(self, static_cast<int64_t>(dims)) && output_size.size() == dims && all_at_least(output_size, 0);
}

bool are_gradients(const at::Tensor& grad_output, const at::Tensor& self, int64_t dims) {
  return are_images(self, dims) && are_images(grad_output, dims) && grad_output.dim() == self.dim() &&
         grad_output.scalar_type() == self.scalar_type();
}

bool are_indices_of(const at::Tensor& indices, at::IntArrayRef sizes) {
  return indices.sizes() == sizes && indices.scalar_type() == at::kLong;
}

// One value stands for all dimensions, none for the default's.
c10::DimVector expand_parameter(at::IntArrayRef values, size_t dims, at::IntArrayRef absent = {}) {
  if (values.empty()) return c10::DimVector(absent);
  return values.size() == 1 ? c10::DimVector(dims, values[0]) : c10::DimVector(values);
}

// Volumes laid out as the CPU lays out those that it makes of `source`: one volume as a batch of one.
TensorShape volumes_like(const at::Tensor& self, at::IntArrayRef sizes, const at::Tensor& source) {
  if (source.dim() == 5) return like(self, sizes, source.suggest_memory_format());
  TensorShape shape = like(self, sizes);
  if (!source.is_contiguous() && source.unsqueeze(0).is_contiguous(at::MemoryFormat::ChannelsLast3d)) {
    const auto strides = c10::get_channels_last_strides_3d(sizes);
    shape.strides.emplace(strides.begin(), strides.end());
  }
  return shape;
}

// Empty: the CPU kernel refuses the arguments.
c10::DimVector pooled_sizes(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto given = [](at::IntArrayRef values) { return values.size() == 1 || values.size() == 3; };
  if (!are_images(self, 3) || self.suggest_memory_format() == at::MemoryFormat::ChannelsLast || !given(kernel_size) ||
      !(stride.empty() || given(stride)) || !given(padding) || !given(dilation) || !all_at_least(kernel_size, 1) ||
      !all_at_least(stride, 1) || !all_at_least(padding, 0) || !all_at_least(dilation, 1)) {
    return {};
  }
  const auto kernel = expand_parameter(kernel_size, 3);
  const auto step = expand_parameter(stride, 3, kernel);
  const auto pad = expand_parameter(padding, 3);
  const auto spread = expand_parameter(dilation, 3);
  c10::DimVector spatial(3);
  for (size_t i = 0; i < 3; ++i) {
    if (pad[i] > ((kernel[i] - 1) * spread[i] + 1) / 2) return {};
    spatial[i] = at::native::pooling_output_shape(self.size(static_cast<int64_t>(i) - 3), kernel[i], pad[i], step[i],
                                                  spread[i], ceil_mode);
  }
  return all_at_least(spatial, 1) ? with_spatial_sizes(self, spatial) : c10::DimVector();
}

struct SlidingWindow {
  at::IntArrayRef kernel_size;
  at::IntArrayRef dilation;
  at::IntArrayRef padding;
  at::IntArrayRef stride;

  bool valid() const {
    return kernel_size.size() == 2 && dilation.size() == 2 && padding.size() == 2 && stride.size() == 2 &&
           all_at_least(kernel_size, 1) && all_at_least(dilation, 1) && all_at_least(padding, 0) &&
           all_at_least(stride, 1);
  }
  int64_t elements() const { return kernel_size[0] * kernel_size[1]; }
  // In an image of this size; 0: a window is larger than the image.
  int64_t count(at::IntArrayRef image) const {
    int64_t result = 1;
    for (size_t i = 0; i < 2; ++i) {
      const int64_t room = image[i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1;
      result *= room < 0 ? 0 : room / stride[i] + 1;
    }
    return result;
  }
};

}  // namespace

Shape adaptive_avg_pool2d_shape(const at::Tensor& self, at::IntArrayRef output_size) {
  if (!fit_adaptive_pool(self, output_size, 2)) return std::nullopt;
  return like(self, with_spatial_sizes(self, output_size), self.suggest_memory_format());
}

Shape adaptive_avg_pool2d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self) {
  if (!are_gradients(grad_output, self, 2)) return std::nullopt;
  return like(self, self.sizes(), self.suggest_memory_format());
}

Shape adaptive_avg_pool3d_shape(const at::Tensor& self, at::IntArrayRef output_size) {
  if (!fit_adaptive_pool(self, output_size, 3)) return std::nullopt;
  return like(self, with_spatial_sizes(self, output_size));
}

Shape adaptive_avg_pool3d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self) {
  if (!are_gradients(grad_output, self, 3)) return std::nullopt;
  return like(self);
}

void avg_pool3d_kernel(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                       at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                       std::optional<int64_t> divisor_override, const at::Tensor& out) {
  const at::Tensor result = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
  StructuredCall<at::native::structured_avg_pool3d_out_cpu, 1>::run(self, kernel_size, stride, padding, ceil_mode,
                                                                    count_include_pad, divisor_override, result);
  if (!result.is_same(out)) out.copy_(result);
}

TwoShapes max_pool3d_with_indices_shape(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                        at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto sizes = pooled_sizes(self, kernel_size, stride, padding, dilation, ceil_mode);
  if (sizes.empty()) return std::nullopt;
  const TensorShape output = volumes_like(self, sizes, self);
  TensorShape indices = output;
  indices.options = indices.options.dtype(at::kLong);
  return {output, indices};
}

Shape max_pool3d_with_indices_backward_shape(const at::Tensor& grad_output, const at::Tensor& self,
                                             at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                             at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                                             const at::Tensor& indices) {
  const auto sizes = pooled_sizes(self, kernel_size, stride, padding, dilation, ceil_mode);
  if (sizes.empty() || grad_output.sizes() != sizes || !are_indices_of(indices, sizes)) return std::nullopt;
  return volumes_like(self, self.sizes(), self.dim() == 4 ? grad_output : self);
}

Shape fractional_max_pool3d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self,
                                           at::IntArrayRef kernel_size, at::IntArrayRef output_size,
                                           const at::Tensor& indices) {
  if (!are_images(self, 3) || kernel_size.size() != 3 || output_size.size() != 3 || grad_output.dim() != self.dim() ||
      grad_output.sizes() != with_spatial_sizes(self, output_size) || !are_indices_of(indices, grad_output.sizes())) {
    return std::nullopt;
  }
  return like(self);
}

Shape max_unpool2d_shape(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef output_size) {
  if (!fit_adaptive_pool(self, output_size, 2) || !are_indices_of(indices, self.sizes())) return std::nullopt;
  return like(self, with_spatial_sizes(self, output_size), self.suggest_memory_format());
}

Shape max_unpool3d_shape(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef output_size,
                         at::IntArrayRef stride, at::IntArrayRef padding) {
  if (!fit_adaptive_pool(self, output_size, 3) || stride.size() != 3 || padding.size() != 3 ||
      !all_at_least(stride, 1) || !are_indices_of(indices, self.sizes())) {
    return std::nullopt;
  }
  return like(self, with_spatial_sizes(self, output_size));
}

Shape im2col_shape(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef dilation,
                   at::IntArrayRef padding, at::IntArrayRef stride) {
  const SlidingWindow window{kernel_size, dilation, padding, stride};
  if (!are_images(self, 2) || !window.valid()) return std::nullopt;
  const int64_t count = window.count(self.sizes().slice(self.dim() - 2));
  if (count == 0) return std::nullopt;
  c10::DimVector sizes(self.sizes().slice(0, self.dim() - 3));
  sizes.append({self.size(-3) * window.elements(), count});
  return like(self, sizes);
}

Shape col2im_shape(const at::Tensor& self, at::IntArrayRef output_size, at::IntArrayRef kernel_size,
                   at::IntArrayRef dilation, at::IntArrayRef padding, at::IntArrayRef stride) {
  const SlidingWindow window{kernel_size, dilation, padding, stride};
  if (!are_images(self, 1) || !window.valid() || output_size.size() != 2 || !all_at_least(output_size, 1) ||
      self.size(-2) % window.elements() != 0 || window.count(output_size) != self.size(-1)) {
    return std::nullopt;
  }
  c10::DimVector sizes(self.sizes().slice(0, self.dim() - 2));
  sizes.push_back(self.size(-2) / window.elements());
  sizes.append(output_size.begin(), output_size.end());
  return like(self, sizes);
}

}  // namespace torch_mtia
