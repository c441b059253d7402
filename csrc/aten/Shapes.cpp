#include "ShapeFunctions.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/FractionalMaxPooling.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/item.h>

#include <bitset>
#include <cmath>
#include <sstream>

#include "ATen/native/mtia/EmptyTensor.h"
#include "Launch.h"

namespace torch_mtia {

TensorShape like(const at::Tensor& self) {
  return like(self, self.sizes());
}
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes) {
  return {c10::DimVector(sizes.begin(), sizes.end()), self.options()};
}
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes, at::ScalarType dtype) {
  return {c10::DimVector(sizes.begin(), sizes.end()), self.options().dtype(dtype)};
}
TensorShape like(const at::Tensor& self, at::IntArrayRef sizes, at::MemoryFormat format) {
  return {c10::DimVector(sizes.begin(), sizes.end()), self.options().memory_format(format)};
}
TensorShape with_strides_of(const at::Tensor& self) {
  TensorShape shape = like(self);
  const auto strides = self.is_non_overlapping_and_dense() ? self.strides().vec()
                                                           : at::infer_dense_strides(self.sizes(), self.strides());
  shape.strides.emplace(strides.begin(), strides.end());
  return shape;
}

bool all_at_least(at::IntArrayRef values, int64_t least) {
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value >= least; });
}

bool are_images(const at::Tensor& tensor, int64_t spatial_dims) {
  const int64_t batch_dims = tensor.dim() - spatial_dims - 1;
  return (batch_dims == 0 || batch_dims == 1) && all_at_least(tensor.sizes().slice(batch_dims), 1);
}

namespace {

c10::DimVector reduced(const at::Tensor& self, int64_t dim, bool keepdim) {
  c10::DimVector sizes(self.sizes());
  if (self.dim() == 0) return sizes;
  if (keepdim) {
    sizes[dim] = 1;
  } else {
    sizes.erase(sizes.begin() + dim);
  }
  return sizes;
}

TwoKnownShapes values_and_indices(const at::Tensor& self, int64_t dim, bool keepdim) {
  const auto sizes = reduced(self, dim, keepdim);
  return {like(self, sizes), like(self, sizes, at::kLong)};
}

void warn_if_expanded(const at::Tensor& self, const char* name) {
  if (at::has_internal_overlap(self) != at::MemOverlap::Yes) return;
  TORCH_WARN("Use of ", name,
             " on expanded tensors is deprecated. Please clone() the tensor before performing this "
             "operation. This also applies to advanced indexing e.g. tensor[index] = value");
}

bool is_capturing(const at::Tensor& self) {
  return current_stream(self.device()).core().graph() != nullptr;
}

}  // namespace

at::Tensor empty_of(const TensorShape& shape) {
  if (shape.absent) return {};
  if (shape.strides) {
    return at::Tensor(at::detail::empty_strided_mtia(shape.sizes, *shape.strides, shape.options));
  }
  return at::Tensor(at::detail::empty_mtia(shape.sizes, shape.options));
}

void resize_to(const at::Tensor& out, const TensorShape& shape) {
  const auto dtype = c10::typeMetaToScalarType(shape.options.dtype());
  TORCH_CHECK(shape.casts || out.scalar_type() == dtype, "Expected out tensor to have dtype ", dtype, ", but got ",
              out.scalar_type(), " instead");
  at::native::resize_output(out, shape.sizes);
}

void write_result(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

void renorm_out_check(const at::Tensor& self, const at::Scalar& /*p*/, int64_t dim, const at::Scalar& /*maxnorm*/,
                      const at::Tensor& /*out*/) {
  at::maybe_wrap_dim(dim, self.dim());
}

void fractional_max_pool2d_out_check(const at::Tensor& self, at::IntArrayRef /*kernel_size*/,
                                     at::IntArrayRef /*output_size*/, const at::Tensor& random_samples,
                                     const at::Tensor& /*output*/, const at::Tensor& /*indices*/) {
  at::native::fractional_max_pool_check_shape<2>(self, random_samples);
}

void fractional_max_pool3d_out_check(const at::Tensor& self, int64_t /*pool_time*/, int64_t /*pool_height*/,
                                     int64_t /*pool_width*/, int64_t /*output_time*/, int64_t /*output_height*/,
                                     int64_t /*output_width*/, const at::Tensor& random_samples, int64_t /*batch*/,
                                     int64_t /*planes*/, int64_t /*input_time*/, int64_t /*input_height*/,
                                     int64_t /*input_width*/, const at::Tensor& /*output*/,
                                     const at::Tensor& /*indices*/) {
  at::native::fractional_max_pool_check_shape<3>(self, random_samples);
}

void index_select_out_check(const at::Tensor& self, int64_t /*dim*/, const at::Tensor& index, const at::Tensor& out) {
  take_out_check(self, index, out);
}

void take_out_check(const at::Tensor& self, const at::Tensor& index, const at::Tensor& out) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
}

void kthvalue_out_check(const at::Tensor& self, int64_t /*k*/, int64_t /*dim*/, bool /*keepdim*/,
                        const at::Tensor& values, const at::Tensor& /*indices*/) {
  at::assert_no_overlap(self, values);
}

void searchsorted_out_check(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                            std::optional<std::string_view> side, const std::optional<at::Tensor>& sorter,
                            const at::Tensor& out) {
  at::native::searchsorted_pre_check(sorted_sequence, self, out, out_int32, right, side, sorter.value_or(at::Tensor()));
}

void mode_out_check(const at::Tensor& self, int64_t /*dim*/, bool /*keepdim*/, const at::Tensor& values,
                    const at::Tensor& indices) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(), "expected scalar type '", self.scalar_type(), "' but got '",
              values.scalar_type(), "' for values output");
  TORCH_CHECK(indices.scalar_type() == at::kLong, "expected scalar type '", at::kLong, "' but got '",
              indices.scalar_type(), "' for indices output");
  at::assert_no_overlap(values, self);
  at::assert_no_overlap(indices, self);
}

void masked_fill_check(const at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              mask.dtype());
  warn_if_expanded(self, "masked_fill_");
  at::assert_no_partial_overlap(self, mask);
  const auto sizes = at::infer_size_dimvector(self.sizes(), mask.sizes());
  TORCH_CHECK(self.sizes().equals(sizes), "output with shape ", self.sizes(), " doesn't match the broadcast shape ",
              at::IntArrayRef(sizes));
  // Raises where the value does not fit.
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(at::kBool, at::kHalf, at::kBFloat16, at::kComplexHalf, self.scalar_type(),
                                         "masked_fill", [&] { (void)value.to<scalar_t>(); });
}

void masked_fill_check(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  // Whether a complex number fits a real tensor depends on it: as on CUDA the call waits for it.
  const bool may_not_fit = value.is_complex() && !self.is_complex();
  masked_fill_check(self, mask, may_not_fit ? value.item() : at::Scalar(0));
}

void masked_scatter_check(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  at::assert_no_internal_overlap(self);
  TORCH_CHECK(at::is_expandable_to(mask.sizes(), self.sizes()), "masked_scatter_: the mask's shape ", mask.sizes(),
              " cannot be broadcast to the tensor's, ", self.sizes());
  if (source.numel() >= self.numel() || is_capturing(self)) return;
  const auto taken = at::count_nonzero(mask).item<int64_t>() * (self.numel() / std::max<int64_t>(mask.numel(), 1));
  TORCH_CHECK(taken <= source.numel(), "Number of elements of source < number of ones in mask");
}

void index_fill_check(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong, "index_fill_(): Expected dtype int64 for index.");
  at::assert_no_overlap(self, index);
  warn_if_expanded(self, "index_fill_");
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  at::maybe_wrap_dim(dim, self.dim());
}

void index_fill_check(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  index_fill_check(self, dim, index, at::Scalar(0));
}

namespace {

// How self[indices] is shaped: the indices broadcast together take the place of the dimensions that they index, or,
// where those are not adjacent, come first.
class IndexedShape {
 public:
  explicit IndexedShape(at::IntArrayRef self) : self_(self) {}

  void keep_dimension() { ++dim_; }
  void index_dimensions(int64_t count, at::IntArrayRef index) {
    const bool adjacent = first_ < 0 || dim_ == end_;
    adjacent_ = adjacent_ && adjacent;
    if (first_ < 0) first_ = dim_;
    dim_ += count;
    end_ = dim_;
    shapes_.emplace_back(index);
    for (int64_t i = end_ - count; i < end_; ++i) is_indexed_.set(static_cast<size_t>(i));
  }
  int64_t dim() const { return dim_; }

  c10::DimVector sizes() const {
    c10::DimVector result;
    for (const auto& shape : shapes_) {
      TORCH_CHECK_INDEX(at::are_expandable(result, shape),
                        "shape mismatch: indexing tensors could not be broadcast together with shapes ", shapes());
      result = at::infer_size_dimvector(result, shape);
    }
    const int64_t before = adjacent_ && first_ >= 0 ? first_ : 0;
    result.insert(result.begin(), self_.begin(), self_.begin() + before);
    for (int64_t i = before; i < static_cast<int64_t>(self_.size()); ++i) {
      if (!is_indexed_.test(static_cast<size_t>(i))) result.push_back(self_[static_cast<size_t>(i)]);
    }
    return result;
  }

 private:
  std::string shapes() const {
    std::ostringstream text;
    for (const auto& shape : shapes_) text << (&shape == shapes_.data() ? "" : ", ") << at::IntArrayRef(shape);
    return text.str();
  }

  const at::IntArrayRef self_;
  c10::SmallVector<c10::DimVector, 4> shapes_;
  std::bitset<64> is_indexed_;
  int64_t dim_ = 0;
  int64_t first_ = -1;
  int64_t end_ = 0;
  bool adjacent_ = true;
};

}  // namespace

void index_put_check(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                     const at::Tensor& values, bool /*accumulate*/, bool /*unsafe*/) {
  // Indices may be on the CPU, and a value that is a number.
  TORCH_CHECK(values.device() == self.device() || (values.is_cpu() && values.dim() == 0),
              "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and ",
              values.device(), "! (when running aten::_index_put_impl_ with argument values)");
  warn_if_expanded(self, "index_put_");
  at::assert_no_overlap(self, values);
  // How many elements a mask takes is known when the device has counted them: for one value it need not be.
  const bool counts_masks = values.numel() != 1 && !is_capturing(self);
  bool has_mask = false;
  IndexedShape indexed(self.sizes());
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index.has_value() || !index->defined()) {
      indexed.keep_dimension();
      continue;
    }
    const auto dtype = index->scalar_type();
    TORCH_CHECK_INDEX(dtype == at::kLong || dtype == at::kInt || dtype == at::kByte || dtype == at::kBool,
                      "tensors used as indices must be long, int, byte or bool tensors");
    at::assert_no_overlap(self, *index);
    const bool is_mask = dtype == at::kByte || dtype == at::kBool;
    for (int64_t dim = 0; is_mask && dim < index->dim(); ++dim) {
      TORCH_CHECK_INDEX(indexed.dim() + dim < self.dim() && index->size(dim) == self.size(indexed.dim() + dim),
                        "The shape of the mask ", index->sizes(), " at index ", dim,
                        " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
                        indexed.dim() + dim);
    }
    has_mask = has_mask || is_mask;
    if (is_mask && index->dim() == 0) continue;
    const int64_t count = is_mask && counts_masks ? at::count_nonzero(*index).item<int64_t>() : 1;
    const int64_t dims = is_mask ? index->dim() : 1;
    TORCH_CHECK_INDEX(indexed.dim() + dims <= self.dim(), "too many indices for tensor of dimension ", self.dim(),
                      " (got ", indexed.dim() + dims, ")");
    indexed.index_dimensions(dims, is_mask ? at::IntArrayRef(count) : index->sizes());
  }
  TORCH_CHECK_INDEX(indexed.dim() <= self.dim(), "too many indices for tensor of dimension ", self.dim(), " (got ",
                    indexed.dim(), ")");
  if (!has_mask || counts_masks) {
    const auto sizes = indexed.sizes();
    TORCH_CHECK(at::is_expandable_to(values.sizes(), sizes), "shape mismatch: value tensor of shape ", values.sizes(),
                " cannot be broadcast to indexing result of shape ", at::IntArrayRef(sizes));
  }
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
}

void put_check(const at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool /*accumulate*/) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, but got self.dtype = ", self.scalar_type(),
              " and source.dtype = ", source.scalar_type());
  TORCH_CHECK_INDEX(source.numel() == index.numel(),
                    "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
                    source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0), "put_(): Tried to put elements into an empty tensor");
  at::assert_no_internal_overlap(self);
  at::assert_no_overlap(self, index);
  at::assert_no_overlap(self, source);
}

KnownShape index_select_shape(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(!(self.dim() == 0 && index.numel() != 1), "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
              "index_select(): Expected dtype int32 or int64 for index");
  TORCH_CHECK(self.dim() <= 1 || self.size(dim) > 0 || index.numel() == 0,
              "index_select(): self indexing axis dim should be positive");
  c10::DimVector sizes(self.sizes());
  if (self.dim() > 0) sizes[dim] = index.numel();
  return {like(self, sizes)};
}

KnownShape take_shape(const at::Tensor& self, const at::Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0), "take(): tried to take from an empty tensor");
  return {like(self, index.sizes())};
}

Shape trace_shape(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return {
      like(self, {}, at::isIntegralType(self.scalar_type(), /*includeBool=*/true) ? at::kLong : self.scalar_type())};
}

Shape flip_shape(const at::Tensor& self, at::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());  // raises for dims out of range or repeated
  return {with_strides_of(self)};
}

Shape roll_shape(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(!dims.empty() || shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  TORCH_CHECK(dims.empty() || dims.size() == shifts.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/false);
  return {like(self, self.sizes())};
}

KnownShape logcumsumexp_shape(const at::Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  return {like(self, self.sizes())};
}

Shape unfold_backward_shape(const at::Tensor& grad, at::IntArrayRef input_sizes, int64_t dim, int64_t size,
                            int64_t step) {
  const auto dims = static_cast<int64_t>(input_sizes.size());
  if (dim < -dims || dim >= dims || step <= 0) return std::nullopt;
  dim = at::maybe_wrap_dim(dim, dims);
  c10::DimVector unfolded(input_sizes);
  unfolded[dim] = (input_sizes[dim] - size) / step + 1;
  unfolded.push_back(size);
  if (grad.sizes() != unfolded) return std::nullopt;
  return {like(grad, input_sizes)};
}

KnownShape all_reduced_shape(const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0,
              "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
              "argument.");
  KnownShape shape = {like(self, {})};
  shape[0].casts = true;
  return shape;
}

Shape prod_shape(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return {like(self, {}, at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true))};
}

KnownShape var_shape(const at::Tensor& self, at::OptionalIntArrayRef dim,
                     const std::optional<at::Scalar>& /*correction*/, bool keepdim) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()) || at::isComplexType(self.scalar_type()),
              "std and var only support floating point and complex dtypes");
  const auto mask = at::native::make_dim_mask(dim, self.dim());
  const auto sizes = at::native::shape_from_dim_mask(self, mask, keepdim);
  TensorShape shape = like(self, sizes, c10::toRealValueType(self.scalar_type()));
  shape.casts = true;
  return {shape};
}

TwoShapes var_mean_shape(const at::Tensor& self, at::OptionalIntArrayRef dim,
                         const std::optional<at::Scalar>& correction, bool keepdim) {
  const TensorShape var = var_shape(self, dim, correction, keepdim)[0];
  return {var, like(self, var.sizes)};
}

TwoKnownShapes kthvalue_shape(const at::Tensor& self, int64_t k, int64_t dim, bool keepdim) {
  dim = at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/true);
  if (self.numel() == 0) at::native::zero_numel_check_dims(self, dim, "kthvalue()");
  const int64_t size = self.dim() > 0 ? self.size(dim) : 1;
  TORCH_CHECK(k >= 1 && k <= size, "kthvalue(): selected number k out of range for dimension ", dim);
  return values_and_indices(self, dim, keepdim);
}

TwoKnownShapes median_shape(const at::Tensor& self, int64_t dim, bool keepdim) {
  dim = at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/true);
  if (self.numel() == 0) at::native::zero_numel_check_dims(self, dim, "median()");
  return values_and_indices(self, dim, keepdim);
}

Shape median_all_shape(const at::Tensor& self) {
  return {like(self, {})};
}

KnownShape searchsorted_shape(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                              std::optional<std::string_view> side, const std::optional<at::Tensor>& sorter) {
  const auto dtype = out_int32 ? at::kInt : at::kLong;
  const at::Tensor out = at::detail::empty_cpu({0}, dtype);
  at::native::searchsorted_pre_check(sorted_sequence, self, out, out_int32, right, side, sorter.value_or(at::Tensor()));
  return {like(self, self.sizes(), dtype)};
}

KnownShape bucketize_shape(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  return searchsorted_shape(boundaries, self, out_int32, right, std::nullopt, std::nullopt);
}

KnownShape nansum_shape(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                        std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(!self.is_complex(), "nansum does not support complex inputs");
  const auto mask = at::native::make_dim_mask(dim, self.dim());
  const auto result = at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true);
  KnownShape shape = {like(self, at::native::shape_from_dim_mask(self, mask, keepdim), result)};
  shape[0].casts = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return shape;
}

Shape count_nonzero_shape(const at::Tensor& self, at::IntArrayRef dim) {
  const auto mask = at::native::make_dim_mask(dim, self.dim());
  return {like(self, at::native::shape_from_dim_mask(self, mask, /*keepdim=*/false), at::kLong)};
}

TwoShapes mode_shape(const at::Tensor& self, int64_t dim, bool keepdim) {
  dim = at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/true);
  if (self.numel() == 0) at::native::zero_numel_check_dims(self, dim, "mode()");
  return values_and_indices(self, dim, keepdim);
}

Shape channel_shuffle_shape(const at::Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(self.size(1) % groups == 0, "Number of channels must be divisible by groups. Got ", self.size(1),
              " channels and ", groups, " groups.");
  TensorShape shape = like(self, self.sizes());
  shape.options = shape.options.memory_format(self.suggest_memory_format());
  return {shape};
}

KnownShape addbmm_shape(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                        const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/) {
  TORCH_CHECK(batch1.dim() == 3 && batch2.dim() == 3, "batch1 and batch2 must be 3D tensors");
  TORCH_CHECK(batch1.size(0) == batch2.size(0), "batch1 and batch2 must have same number of batches, got ",
              batch1.size(0), " and ", batch2.size(0));
  TORCH_CHECK(batch1.size(2) == batch2.size(1), "Incompatible matrix sizes for bmm (", batch1.size(1), "x",
              batch1.size(2), " and ", batch2.size(1), "x", batch2.size(2), ")");
  const std::array<int64_t, 2> sizes{batch1.size(1), batch2.size(2)};
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "self tensor does not match matmul output shape");
  return {like(self, sizes)};
}

Shape matrix_exp_shape(const at::Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "linalg.matrix_exp: The input tensor A must have at least 2 dimensions.");
  TORCH_CHECK(self.size(-1) == self.size(-2), "linalg.matrix_exp: A must be batches of square matrices, but they are ",
              self.size(-2), " by ", self.size(-1), " matrices");
  return {like(self, self.sizes())};
}

KnownShape histc_shape(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  TORCH_CHECK(bins > 0, "histogram: bins must be > 0, but got ", bins, " for dimension 0");
  double least = min.toDouble();
  double most = max.toDouble();
  TORCH_CHECK(least <= most, "torch.histc: max must be larger than min");
  // Without a range that of the data is taken: as on CUDA the call waits for it.
  if (least == most && self.numel() > 0 && !is_capturing(self)) {
    const auto [smallest, largest] = at::aminmax(self);
    least = smallest.item<double>();
    most = largest.item<double>();
  }
  TORCH_CHECK(std::isfinite(least) && std::isfinite(most), "torch.histc: range of [", least, ", ", most,
              "] is not finite");
  // Those of integers are integers; what 64 bits cannot hold is an error.
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    min.to<int64_t>();
    max.to<int64_t>();
  }
  const std::array<int64_t, 1> sizes{bins};
  return {like(self, sizes)};
}

void histc_out_check(const at::Tensor& /*self*/, int64_t /*bins*/, const at::Scalar& /*min*/, const at::Scalar& /*max*/,
                     const at::Tensor& out) {
  if (at::isIntegralType(out.scalar_type(), /*includeBool=*/false)) at::assert_no_internal_overlap(out);
}

Shape cdist_backward_shape(const at::Tensor& /*grad*/, const at::Tensor& x1, const at::Tensor& x2, double /*p*/,
                           const at::Tensor& /*cdist*/) {
  // The CPU's kernel does not look, and reads other memory.
  TORCH_CHECK(x1.dim() >= 2 && x2.dim() >= 2 && x1.size(-1) == x2.size(-1),
              "X1 and X2 must have the same number of columns. X1: ", x1.sizes(), " X2: ", x2.sizes());
  c10::DimVector sizes = at::infer_size_dimvector(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.push_back(x1.size(-2));
  sizes.push_back(x1.size(-1));
  return {like(x1, sizes)};
}

Shape pdist_shape(const at::Tensor& self, double p) {
  if (self.dim() != 2 || p < 0 || !self.is_contiguous()) return std::nullopt;
  const int64_t rows = self.size(0);
  const std::array<int64_t, 1> sizes{rows <= 1 ? 0 : rows * (rows - 1) / 2};
  return {like(self, sizes)};
}

Shape pdist_backward_shape(const at::Tensor& /*grad*/, const at::Tensor& self, double /*p*/,
                           const at::Tensor& /*pdist*/) {
  if (!self.is_contiguous()) return std::nullopt;
  return {like(self, self.sizes())};
}

Shape cdist_shape(const at::Tensor& x1, const at::Tensor& x2, double p, std::optional<int64_t> /*compute_mode*/) {
  if (x1.dim() < 2 || x2.dim() < 2 || x1.size(-1) != x2.size(-1) || p < 0) return std::nullopt;
  c10::DimVector sizes = at::infer_size_dimvector(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.push_back(x1.size(-2));
  sizes.push_back(x2.size(-2));
  return {like(x1, sizes)};
}

TwoKnownShapes log_sigmoid_forward_shape(const at::Tensor& self) {
  return {like(self), like(self)};
}

KnownShape log_sigmoid_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& buffer) {
  const auto sizes =
      at::infer_size_dimvector(at::infer_size_dimvector(self.sizes(), buffer.sizes()), grad_output.sizes());
  return {grad_output.sizes() == sizes ? with_strides_of(grad_output) : like(grad_output, sizes)};
}

}  // namespace torch_mtia
