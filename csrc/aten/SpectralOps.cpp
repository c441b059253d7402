// Shapes of Fourier transforms: ATen's CPU kernels, that is MKL's.
#include <algorithm>
#include <numeric>

#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

// The strides that the CPU's kernels (_exec_fft in aten/src/ATen/native/mkl/SpectralOps.cpp) give the transform of a
// tensor: its other dimensions come first, in the order of its strides, and then `dims`.
c10::DimVector transformed_strides(at::IntArrayRef strides, at::IntArrayRef sizes, at::IntArrayRef dims) {
  c10::DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_transformed = [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); };
  const auto batch_end = std::partition(order.begin(), order.end(), [&](int64_t d) { return !is_transformed(d); });
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), batch_end);
  c10::DimVector result(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    result[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return result;
}

// All `dims` but the last `fixed` ones in the order of the strides, as _sort_dims there.
c10::DimVector sorted_by_stride(at::IntArrayRef strides, at::IntArrayRef dims, size_t fixed = 0) {
  c10::DimVector sorted(dims);
  std::sort(sorted.begin(), sorted.end() - static_cast<std::ptrdiff_t>(fixed),
            [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return sorted;
}

// Direct calls may have any; torch.fft passes those that there are, each once. The CPU's kernels do not look either,
// and touch other memory.
void check_dims(const at::Tensor& self, at::IntArrayRef dims) {
  for (const int64_t dim : dims) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < self.dim(), "Dimension out of range (expected to be in range of [0, ",
                      self.dim() - 1, "], but got ", dim, ")");
    TORCH_CHECK(std::count(dims.begin(), dims.end(), dim) == 1, "FFT dims must be unique, but got ", dims);
  }
}

Shape transform(const at::Tensor& self, at::IntArrayRef strides, at::IntArrayRef sizes, at::IntArrayRef dims,
                at::ScalarType dtype) {
  TensorShape shape = like(self, sizes, dtype);
  shape.strides = transformed_strides(strides, sizes, dims);
  return shape;
}

}  // namespace

Shape fft_c2c_shape(const at::Tensor& self, at::IntArrayRef dim, int64_t /*normalization*/, bool /*forward*/) {
  check_dims(self, dim);
  if (!self.is_complex() || self.numel() == 0 || dim.empty()) return std::nullopt;
  return transform(self, self.strides(), self.sizes(), sorted_by_stride(self.strides(), dim), self.scalar_type());
}

Shape fft_r2c_shape(const at::Tensor& self, at::IntArrayRef dim, int64_t /*normalization*/, bool onesided) {
  check_dims(self, dim);
  if (!self.is_floating_point() || self.numel() == 0 || dim.empty()) return std::nullopt;
  c10::DimVector sizes(self.sizes());
  if (onesided) sizes[dim.back()] = sizes[dim.back()] / 2 + 1;
  return transform(self, self.strides(), sizes, sorted_by_stride(self.strides(), dim, 1),
                   at::toComplexType(self.scalar_type()));
}

// Several dimensions are transformed in two steps, of which the second one, that of the last dimension, gives real
// numbers.
Shape fft_c2r_shape(const at::Tensor& self, at::IntArrayRef dim, int64_t /*normalization*/, int64_t last_dim_size) {
  check_dims(self, dim);
  if (!self.is_complex() || self.numel() == 0 || dim.empty() || last_dim_size <= 0) return std::nullopt;
  c10::DimVector strides(self.strides());
  if (dim.size() > 1) {
    strides = transformed_strides(strides, self.sizes(), sorted_by_stride(strides, dim.slice(0, dim.size() - 1)));
  }
  c10::DimVector sizes(self.sizes());
  sizes[dim.back()] = last_dim_size;
  return transform(self, strides, sizes, dim.slice(dim.size() - 1), at::toRealValueType(self.scalar_type()));
}

}  // namespace torch_mtia
