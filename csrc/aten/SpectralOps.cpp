// Fourier transforms: ATen's CPU kernels, that is MKL's.
#include <ATen/native/Resize.h>
#include <ATen/ops/_fft_c2c_native.h>
#include <ATen/ops/_fft_c2r_native.h>
#include <ATen/ops/_fft_r2c_native.h>

#include <algorithm>
#include <numeric>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::kTransformWeight;

// The strides that the CPU's kernels (_exec_fft in aten/src/ATen/native/mkl/SpectralOps.cpp) give the transform of a
// tensor: its other dimensions come first, in the order of its strides, and then `dims`.
DimVector transformed_strides(IntArrayRef strides, IntArrayRef sizes, IntArrayRef dims) {
  DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_transformed = [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); };
  const auto batch_end = std::partition(order.begin(), order.end(), [&](int64_t d) { return !is_transformed(d); });
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), batch_end);
  DimVector result(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    result[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return result;
}

// All `dims` but the last `fixed` ones in the order of the strides, as _sort_dims there.
DimVector sorted_by_stride(IntArrayRef strides, IntArrayRef dims, size_t fixed = 0) {
  DimVector sorted(dims);
  std::sort(sorted.begin(), sorted.end() - static_cast<std::ptrdiff_t>(fixed),
            [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return sorted;
}

Tensor new_transform(const Tensor& self, IntArrayRef strides, IntArrayRef sizes, IntArrayRef dims, ScalarType dtype) {
  return Tensor(
      detail::empty_strided_mtia(sizes, transformed_strides(strides, sizes, dims), self.options().dtype(dtype)));
}

Tensor& write(const Tensor& result, Tensor& out) {
  resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace

Tensor _fft_c2c_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, bool forward) {
  if (dim.empty()) return self.clone();
  return HostFunction<&_fft_c2c_mkl>::call(
      {"aten::_fft_c2c", kTransformWeight}, self.is_complex() && self.numel() > 0,
      [&] {
        return new_transform(self, self.strides(), self.sizes(), sorted_by_stride(self.strides(), dim),
                             self.scalar_type());
      },
      self, dim, normalization, forward);
}

Tensor _fft_r2c_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, bool onesided) {
  return HostFunction<&_fft_r2c_mkl>::call(
      {"aten::_fft_r2c", kTransformWeight}, self.is_floating_point() && self.numel() > 0 && !dim.empty(),
      [&] {
        DimVector sizes(self.sizes());
        if (onesided) sizes[dim.back()] = sizes[dim.back()] / 2 + 1;
        return new_transform(self, self.strides(), sizes, sorted_by_stride(self.strides(), dim, 1),
                             toComplexType(self.scalar_type()));
      },
      self, dim, normalization, onesided);
}

// Several dimensions are transformed in two steps, of which the second one, that of the last dimension, gives real
// numbers.
Tensor _fft_c2r_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, int64_t last_dim_size) {
  return HostFunction<&_fft_c2r_mkl>::call(
      {"aten::_fft_c2r", kTransformWeight}, self.is_complex() && self.numel() > 0 && !dim.empty() && last_dim_size > 0,
      [&] {
        DimVector strides(self.strides());
        if (dim.size() > 1) {
          strides = transformed_strides(strides, self.sizes(), sorted_by_stride(strides, dim.slice(0, dim.size() - 1)));
        }
        DimVector sizes(self.sizes());
        sizes[dim.back()] = last_dim_size;
        return new_transform(self, strides, sizes, dim.slice(dim.size() - 1), toRealValueType(self.scalar_type()));
      },
      self, dim, normalization, last_dim_size);
}

Tensor& _fft_c2c_out_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, bool forward, Tensor& out) {
  return write(_fft_c2c_mtia(self, dim, normalization, forward), out);
}

Tensor& _fft_r2c_out_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, bool onesided, Tensor& out) {
  return write(_fft_r2c_mtia(self, dim, normalization, onesided), out);
}

Tensor& _fft_c2r_out_mtia(const Tensor& self, IntArrayRef dim, int64_t normalization, int64_t last_dim_size,
                          Tensor& out) {
  return write(_fft_c2r_mtia(self, dim, normalization, last_dim_size), out);
}

}  // namespace at::native
