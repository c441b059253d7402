// Products of matrices of 8-bit floating-point numbers, with scales of float32: one for each matrix, or one for each
// row of the first and each column of the second. Sums, scales and bias are float32, and the result is rounded once, in
// the order of Inductor's template: (sum * (scale_a * scale_b)) + bias.
#include <ATen/BlasBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "MTIANativeFunctions.h"

namespace torch_mtia {
namespace {

using at::blas::ScalingType;
using OptionalTensor = std::optional<at::Tensor>;

bool is_given(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

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
