// What operators return, for those that are not structured: a function for each row with `shape` in
// yaml/native_functions.yaml. It takes the operator's arguments without its outputs, checks what the data does not
// decide, raises as ATen's CPU kernel does, and gives one TensorShape for each output.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <array>
#include <optional>

namespace torch_mtia {

struct TensorShape {
  c10::DimVector sizes;
  at::TensorOptions options;
  std::optional<c10::DimVector> strides;  // none: contiguous
  bool casts = false;                     // the CPU kernel converts to the dtype of an `out` argument
};

at::Tensor empty_of(const TensorShape& shape);
// Makes `out` fit. Raises for a wrong dtype.
void resize_to(const at::Tensor& out, const TensorShape& shape);

// Writes what a functional CPU kernel returned to where it belongs.
void copy_result(const at::Tensor& result, const at::Tensor& output);
inline void copy_results(const at::Tensor& result, const at::Tensor& output) {
  copy_result(result, output);
}
template <typename... Results, typename... Outputs>
void copy_results(const std::tuple<Results...>& results, const Outputs&... outputs) {
  std::apply([&](const Results&... result) { (copy_result(result, outputs), ...); }, results);
}

// Of rows with `checks`: checks of all arguments, those that are written too. For a structured operator, of what its
// meta function leaves to the kernel; the arguments are those of the kernel.
void renorm_out_check(const at::Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm,
                      const at::Tensor& out);
void fractional_max_pool2d_out_check(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef output_size,
                                     const at::Tensor& random_samples, const at::Tensor& output,
                                     const at::Tensor& indices);
void fractional_max_pool3d_out_check(const at::Tensor& self, int64_t pool_time, int64_t pool_height, int64_t pool_width,
                                     int64_t output_time, int64_t output_height, int64_t output_width,
                                     const at::Tensor& random_samples, int64_t batch, int64_t planes,
                                     int64_t input_time, int64_t input_height, int64_t input_width,
                                     const at::Tensor& output, const at::Tensor& indices);
void index_select_out_check(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& out);
void take_out_check(const at::Tensor& self, const at::Tensor& index, const at::Tensor& out);
void kthvalue_out_check(const at::Tensor& self, int64_t k, int64_t dim, bool keepdim, const at::Tensor& values,
                        const at::Tensor& indices);
void searchsorted_out_check(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                            std::optional<std::string_view> side, const std::optional<at::Tensor>& sorter,
                            const at::Tensor& out);
void mode_out_check(const at::Tensor& self, int64_t dim, bool keepdim, const at::Tensor& values,
                    const at::Tensor& indices);
void masked_fill_check(const at::Tensor& self, const at::Tensor& mask, const at::Scalar& value);
void masked_fill_check(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& value);
void masked_scatter_check(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& source);
void index_fill_check(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value);
void index_fill_check(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value);
void index_put_check(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                     const at::Tensor& values, bool accumulate, bool unsafe);
void put_check(const at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate);

using Shape = std::array<TensorShape, 1>;
using TwoShapes = std::array<TensorShape, 2>;
using OptionalDims = const at::OptionalIntArrayRef&;
using OptionalScalar = const std::optional<at::Scalar>&;

Shape index_select_shape(const at::Tensor& self, int64_t dim, const at::Tensor& index);
Shape take_shape(const at::Tensor& self, const at::Tensor& index);
Shape dot_shape(const at::Tensor& self, const at::Tensor& other);
Shape trace_shape(const at::Tensor& self);
Shape flip_shape(const at::Tensor& self, at::IntArrayRef dims);
Shape roll_shape(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims);
Shape logcumsumexp_shape(const at::Tensor& self, int64_t dim);
Shape unfold_backward_shape(const at::Tensor& grad, at::IntArrayRef input_sizes, int64_t dim, int64_t size,
                            int64_t step);
Shape all_reduced_shape(const at::Tensor& self);
Shape prod_shape(const at::Tensor& self, std::optional<at::ScalarType> dtype);
Shape var_shape(const at::Tensor& self, OptionalDims dim, OptionalScalar correction, bool keepdim);
TwoShapes var_mean_shape(const at::Tensor& self, OptionalDims dim, OptionalScalar correction, bool keepdim);
TwoShapes kthvalue_shape(const at::Tensor& self, int64_t k, int64_t dim, bool keepdim);
TwoShapes median_shape(const at::Tensor& self, int64_t dim, bool keepdim);
Shape median_all_shape(const at::Tensor& self);
Shape searchsorted_shape(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                         std::optional<std::string_view> side, const std::optional<at::Tensor>& sorter);
Shape bucketize_shape(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right);
Shape nansum_shape(const at::Tensor& self, OptionalDims dim, bool keepdim, std::optional<at::ScalarType> dtype);
Shape count_nonzero_shape(const at::Tensor& self, at::IntArrayRef dim);
TwoShapes mode_shape(const at::Tensor& self, int64_t dim, bool keepdim);
Shape channel_shuffle_shape(const at::Tensor& self, int64_t groups);
Shape addbmm_shape(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2, const at::Scalar& beta,
                   const at::Scalar& alpha);
Shape matrix_exp_shape(const at::Tensor& self);
Shape histc_shape(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max);
Shape cdist_backward_shape(const at::Tensor& grad, const at::Tensor& x1, const at::Tensor& x2, double p,
                           const at::Tensor& cdist);
Shape pdist_shape(const at::Tensor& self, double p);
Shape pdist_backward_shape(const at::Tensor& grad, const at::Tensor& self, double p, const at::Tensor& pdist);
Shape cdist_shape(const at::Tensor& x1, const at::Tensor& x2, double p, std::optional<int64_t> compute_mode);

}  // namespace torch_mtia
