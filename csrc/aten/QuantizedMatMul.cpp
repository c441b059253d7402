// Matrix products of numbers of 8 and 4 bits.
#include <ATen/BlasBackend.h>
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_int_mm_native.h>
#include <ATen/ops/_weight_int8pack_mm_native.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "CPUKernels.h"
#include "MTIANativeFunctions.h"
#include "ShapeFunctions.h"

// Products of matrices of 8-bit floating-point numbers, with scales of float32: one for each matrix, or one for each
// row of the first and each column of the second. Sums, scales and bias are float32, and the result is rounded once, in
// the order of Inductor's template: (sum * (scale_a * scale_b)) + bias.

namespace torch_mtia {
namespace {

using at::blas::ScalingType;
using OptionalTensor = std::optional<at::Tensor>;

bool is_scale_of_matrix(const at::Tensor& scale) {
  return scale.scalar_type() == at::kFloat && scale.numel() == 1;
}

bool is_scale_of_each(const at::Tensor& scale, int64_t rows, int64_t columns) {
  return scale.scalar_type() == at::kFloat && scale.is_contiguous() &&
         scale.sizes() == at::IntArrayRef({rows, columns});
}

void check_matrices(const at::Tensor& self, const at::Tensor& mat2, const OptionalTensor& bias) {
  TORCH_CHECK_VALUE(self.dim() == 2, "mat_a must be a matrix");
  TORCH_CHECK_VALUE(mat2.dim() == 2, "mat_b must be a matrix");
  TORCH_CHECK_VALUE(self.size(1) == mat2.size(0), "mat_a and mat_b shapes cannot be multiplied (", self.size(0), "x",
                    self.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK_VALUE(at::isFloat8Type(self.scalar_type()) && at::isFloat8Type(mat2.scalar_type()),
                    "mat_a and mat_b must be fp8 types, got: ", self.scalar_type(), " and ", mat2.scalar_type());
  TORCH_CHECK_VALUE(!is_given(bias) || bias->numel() == mat2.size(1), "Bias must be size ", mat2.size(1), " but got ",
                    bias->numel());
}

void check_scales(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scale_a,
                  const at::Tensor& scale_b) {
  const bool fits = (is_scale_of_matrix(scale_a) && is_scale_of_matrix(scale_b)) ||
                    (is_scale_of_each(scale_a, self.size(0), 1) && is_scale_of_each(scale_b, 1, mat2.size(1)));
  TORCH_CHECK_VALUE(fits,
                    "Invalid scaling configuration.\n- For TensorWise scaling, scales should be float and singletons.\n"
                    "- For RowWise scaling, scales should be float and contiguous, scale_a should be (",
                    self.size(0), ", 1) and scale_b should be (1, ", mat2.size(1),
                    ").\nGot scale_a.dtype()=", scale_a.scalar_type(), ", scale_a.size()=", scale_a.sizes(),
                    ", scale_a.stride()=", scale_a.strides(), ", scale_b.dtype()=", scale_b.scalar_type(),
                    ", scale_b.size()=", scale_b.sizes(), " and scale_b.stride()=", scale_b.strides());
}

// The second version names what the scales are for. Other recipes, in blocks, are those of tensor cores.
void check_recipes(at::TensorList scales, at::IntArrayRef recipes, at::IntArrayRef swizzles, const char* name) {
  const auto is = [&](ScalingType type) { return recipes.size() == 1 && recipes[0] == static_cast<int64_t>(type); };
  TORCH_CHECK_VALUE(scales.size() == 1 && (is(ScalingType::TensorWise) || is(ScalingType::RowWise)),
                    "_scaled_mm_v2: ", name, " must be one tensor, its recipe TensorWise (0) or RowWise (1); got ",
                    scales.size(), " tensors and recipes ", recipes);
  const auto none = static_cast<int64_t>(at::blas::SwizzleType::NO_SWIZZLE);
  TORCH_CHECK_VALUE(std::ranges::all_of(swizzles, [&](int64_t swizzle) { return swizzle == none; }),
                    "_scaled_mm_v2: the scales must not be swizzled, but those of ", name, " are");
}

void check_out(const at::Tensor& out, std::optional<at::ScalarType> out_dtype) {
  TORCH_CHECK_VALUE(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
}

// In float32.
at::Tensor scaled_product(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scale_a,
                          const at::Tensor& scale_b, const OptionalTensor& bias) {
  at::Tensor product = self.to(at::kFloat).mm(mat2.to(at::kFloat));
  const bool of_matrices = scale_a.numel() == 1 && scale_b.numel() == 1;
  product.mul_(of_matrices ? scale_a.reshape({}).mul(scale_b.reshape({})) : scale_a.mul(scale_b));
  if (is_given(bias)) product.add_(bias->reshape({-1}));
  return product;
}

at::Tensor scaled_product_v1(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scale_a,
                             const at::Tensor& scale_b, const OptionalTensor& bias, const OptionalTensor& scale_result,
                             at::ScalarType dtype) {
  check_matrices(self, mat2, bias);
  check_scales(self, mat2, scale_a, scale_b);
  TORCH_CHECK(!is_given(scale_result) || is_scale_of_matrix(*scale_result), "scale_result must be a float scalar");
  at::Tensor product = scaled_product(self, mat2, scale_a, scale_b, bias);
  // The scale that the result will have.
  if (is_given(scale_result) && at::isFloat8Type(dtype)) product.mul_(scale_result->reshape({}).reciprocal());
  return product;
}

at::Tensor scaled_product_v2(const at::Tensor& self, const at::Tensor& mat2, at::TensorList scale_a,
                             at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a, at::TensorList scale_b,
                             at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b, const OptionalTensor& bias,
                             at::IntArrayRef contraction_dim) {
  check_matrices(self, mat2, bias);
  TORCH_CHECK_VALUE(contraction_dim.empty() || contraction_dim == at::IntArrayRef({1, 0}),
                    "_scaled_mm_v2: contraction_dim must be [1, 0], or empty, but is ", contraction_dim);
  check_recipes(scale_a, recipe_a, swizzle_a, "scale_a");
  check_recipes(scale_b, recipe_b, swizzle_b, "scale_b");
  check_scales(self, mat2, scale_a[0], scale_b[0]);
  return scaled_product(self, mat2, scale_a[0], scale_b[0], bias);
}

at::Tensor& write(const at::Tensor& product, at::Tensor& out) {
  at::native::resize_output(out, product.sizes());
  return out.copy_(product);
}

}  // namespace
}  // namespace torch_mtia

namespace at::native {

// `use_fast_accum` allows sums of fewer digits, and is of no use here.

Tensor scaled_mm_mtia(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
                      const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                      std::optional<ScalarType> out_dtype, bool /*use_fast_accum*/) {
  const auto dtype = out_dtype.value_or(self.scalar_type());
  return torch_mtia::scaled_product_v1(self, mat2, scale_a, scale_b, bias, scale_result, dtype).to(dtype);
}

Tensor& scaled_mm_out_mtia(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
                           const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
                           std::optional<ScalarType> out_dtype, bool /*use_fast_accum*/, Tensor& out) {
  torch_mtia::check_out(out, out_dtype);
  const Tensor product =
      torch_mtia::scaled_product_v1(self, mat2, scale_a, scale_b, bias, scale_result, out.scalar_type());
  return torch_mtia::write(product, out);
}

Tensor scaled_mm_v2_mtia(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a,
                         IntArrayRef swizzle_a, TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b,
                         const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                         IntArrayRef contraction_dim, bool /*use_fast_accum*/) {
  return torch_mtia::scaled_product_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias,
                                       contraction_dim)
      .to(out_dtype.value_or(self.scalar_type()));
}

Tensor& scaled_mm_v2_out_mtia(const Tensor& self, const Tensor& mat2, TensorList scale_a, IntArrayRef recipe_a,
                              IntArrayRef swizzle_a, TensorList scale_b, IntArrayRef recipe_b, IntArrayRef swizzle_b,
                              const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                              IntArrayRef contraction_dim, bool /*use_fast_accum*/, Tensor& out) {
  torch_mtia::check_out(out, out_dtype);
  const Tensor product = torch_mtia::scaled_product_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b,
                                                       swizzle_b, bias, contraction_dim);
  return torch_mtia::write(product, out);
}

}  // namespace at::native

// Products of 8-bit integers, and with weights of 8 bits.

namespace torch_mtia {
namespace {

bool fits_weight(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales) {
  const auto dtype = self.scalar_type();
  return self.dim() == 2 && mat2.dim() == 2 && self.stride(1) == 1 && mat2.is_contiguous() &&
         self.size(1) == mat2.size(1) && scales.sizes() == at::IntArrayRef({mat2.size(0)}) &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && mat2.scalar_type() == at::kChar &&
         scales.scalar_type() == dtype;
}

// ATen's kernel computes nothing, and says nothing, where rows overlap, and columns too; and takes the stride of what
// there is one of for that of many.
at::Tensor with_rows_or_columns_apart(const at::Tensor& matrix) {
  const auto has_gaps = [&](int64_t inner, int64_t outer) {
    return matrix.stride(outer) >= matrix.size(inner) * std::max<int64_t>(matrix.stride(inner), 1);
  };
  const bool is_line = matrix.size(0) <= 1 || matrix.size(1) <= 1;
  if (!is_line && (has_gaps(0, 1) || has_gaps(1, 0))) return matrix;
  const at::Tensor dense = matrix.contiguous();
  return dense.as_strided(dense.sizes(), {std::max<int64_t>(dense.size(1), 1), 1});
}

bool is_aligned(const at::Tensor& tensor) {
  constexpr uintptr_t kVector = 64;
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kVector == 0;
}

// Without instructions for sums of products of bytes (VNNI), oneDNN adds two products in 16 bits, and cuts what does
// not fit: the CPU's results are then wrong. Only oneDNN knows what it chooses, so that its answer is asked for.
bool cuts_in_onednn() {
  if (!at::globalContext().userEnabledMkldnn()) return false;  // ATen's own loops are exact
  static const bool is_cut = [] {
    constexpr int64_t kSize = 64;
    constexpr int32_t kLargest = std::numeric_limits<int8_t>::max();
    const at::Tensor largest = at::full({kSize, kSize}, kLargest, at::kChar);
    return at::native::_int_mm_cpu(largest, largest).const_data_ptr<int32_t>()[0] != kLargest * kLargest * kSize;
  }();
  return is_cut;
}

bool may_be_cut(const at::Tensor& self, const at::Tensor& mat2) {
  const bool is_of_bytes = self.scalar_type() == at::kChar || self.scalar_type() == at::kByte;
  return is_of_bytes && mat2.scalar_type() == at::kChar && cuts_in_onednn();
}

// Sums of so many products are whole numbers that float32 holds: 512 * 255 * 128 < 2^24.
constexpr int64_t kExactProducts = 512;

at::Tensor product_by_floats(const at::Tensor& self, const at::Tensor& mat2) {
  const at::DisableRecordFunctionGuard unseen;  // by profilers, which have the operator
  const at::Tensor sums = at::zeros({self.size(0), mat2.size(1)}, at::kInt);
  for (int64_t begin = 0; begin < self.size(1); begin += kExactProducts) {
    const int64_t length = std::min(kExactProducts, self.size(1) - begin);
    const at::Tensor columns = self.narrow(1, begin, length).to(at::kFloat);
    sums.add_(at::mm(columns, mat2.narrow(0, begin, length).to(at::kFloat)).to(at::kInt));
  }
  return sums;
}

}  // namespace

at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2) {
  if (may_be_cut(self, mat2)) return product_by_floats(self, mat2);
  return at::native::_int_mm_cpu(with_rows_or_columns_apart(self), with_rows_or_columns_apart(mat2));
}

at::Tensor& int_mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  if (!out.is_contiguous() || may_be_cut(self, mat2)) return out.copy_(int_mm(self, mat2));
  return at::native::_int_mm_out_cpu(with_rows_or_columns_apart(self), with_rows_or_columns_apart(mat2), out);
}

KnownShape int_mm_shape(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2, "int_mm_out_cpu: Expected self to be of dimension 2 but got ", self.dim());
  TORCH_CHECK(mat2.dim() == 2, "int_mm_out_cpu: Expected mat2 to be of dimension 2 but got ", mat2.dim());
  TORCH_CHECK(self.size(1) == mat2.size(0), "int_mm_out_cpu: self.size(1) needs to match mat2.size(0) but got ",
              self.size(1), " and ", mat2.size(0));
  return {like(self, {self.size(0), mat2.size(1)}, at::kInt)};
}

void int_mm_out_check(const at::Tensor& /*self*/, const at::Tensor& /*mat2*/, const at::Tensor& out) {
  at::assert_no_internal_overlap(out);
}

Shape weight_int8pack_mm_shape(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales) {
  if (!fits_weight(self, mat2, scales)) return std::nullopt;
  return like(self, {self.size(0), mat2.size(0)});
}

at::Tensor weight_int8pack_mm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales) {
  // Up to so many rows of bfloat16, for which alone it is vectorized, ATen's kernel is the faster one: a weight of
  // 2048 x 2048 on two cores of a Xeon with AMX takes 0.3 and 1.0 ms for 1 and 16 rows, converted 1.1 and 1.0; 64 rows
  // take 3.2 and 1.7. It reads rows in aligned steps, and beyond their ends; and scales as they lie in memory.
  constexpr int64_t kFewRows = 16;
  constexpr int64_t kStep = 16;
  const auto dtype = self.scalar_type();
  if (!fits_weight(self, mat2, scales)) return at::native::_weight_int8pack_mm_cpu(self, mat2, scales);
  if (dtype == at::kBFloat16 && self.size(0) <= kFewRows && self.size(1) % kStep == 0 && is_aligned(mat2)) {
    const bool are_rows_aligned = is_aligned(self) && self.stride(0) % kStep == 0;
    const at::Tensor rows = are_rows_aligned ? self : self.clone(at::MemoryFormat::Contiguous);
    return at::native::_weight_int8pack_mm_cpu(rows, mat2, scales.contiguous());
  }
  // Sums that are not scaled yet may be too large for float16.
  const auto sums = dtype == at::kHalf ? at::kFloat : dtype;
  return self.to(sums).mm(mat2.to(sums).t()).mul_(scales).to(dtype);
}

}  // namespace torch_mtia

// Products with weights of 4 bits, in the shapes and with the scales of CUDA's kernels. The order within a packed
// weight is the device's own: that of the weight which it is made of.

namespace at::native {

// `self` is a matrix of bytes (n, k / 2): the high halves are the even columns of the weight.
Tensor convert_weight_to_int4pack_mtia(const Tensor& self, int64_t inner_k_tiles) {
  TORCH_CHECK(self.dim() == 2 && self.scalar_type() == kByte,
              "_convert_weight_to_int4pack: expected a uint8 matrix, got ", self.scalar_type(), " of shape ",
              self.sizes());
  TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8,
              "_convert_weight_to_int4pack: innerKTiles must be 2, 4 or 8, got ", inner_k_tiles);
  const int64_t n = self.size(0);
  const int64_t k = self.size(1) * 2;
  TORCH_CHECK(n % 8 == 0 && k % (inner_k_tiles * 16) == 0,
              "_convert_weight_to_int4pack: the weight must be a multiple of 8 by innerKTiles * 16, got ", n, " by ",
              k);
  return self.clone(MemoryFormat::Contiguous).view(kInt).view({n / 8, k / (inner_k_tiles * 16), 32, inner_k_tiles / 2});
}

// `self` (m, k); `packed` is what the function above made of a weight (n, k), of which every `group` columns of a row
// share a scale and a zero point: `scales_and_zeros` (k / group, n, 2). A weight is (number - 8) * scale + zero.
Tensor weight_int4pack_mm_mtia(const Tensor& self, const Tensor& packed, int64_t group,
                               const Tensor& scales_and_zeros) {
  TORCH_CHECK(self.dim() == 2 && packed.dim() == 4 && packed.scalar_type() == kInt,
              "_weight_int4pack_mm: expected a matrix and a weight of _convert_weight_to_int4pack");
  const int64_t n = packed.size(0) * 8;
  const int64_t k = self.size(1);
  TORCH_CHECK(packed.numel() * 8 == n * k, "_weight_int4pack_mm: a matrix of ", k, " columns does not fit a weight of ",
              packed.numel() * 8 / std::max<int64_t>(n, 1));
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256,
              "_weight_int4pack_mm: qGroupSize must be 32, 64, 128 or 256, got ", group);
  TORCH_CHECK(k % group == 0 && scales_and_zeros.sizes() == IntArrayRef({k / group, n, 2}),
              "_weight_int4pack_mm: expected scales and zero points of shape (", k / group, ", ", n, ", 2), got ",
              scales_and_zeros.sizes());
  const Tensor bytes = packed.contiguous().view(kByte).view({n, k / 2});
  const Tensor numbers =
      at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, -1).view({n, k / group, group});
  const Tensor scales = scales_and_zeros.transpose(0, 1).unsqueeze(2).to(kFloat);  // (n, k / group, 1, 2)
  const Tensor weight = numbers.to(kFloat).sub(8).mul(scales.select(-1, 0)).add(scales.select(-1, 1));
  return self.mm(weight.view({n, k}).to(self.scalar_type()).t());
}

}  // namespace at::native
