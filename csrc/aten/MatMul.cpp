// Matrix products: ATen's CPU kernels as work items, with an estimate of their time by the operations they do.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_native.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/addmv_native.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/baddbmm_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_native.h>

#include "CPUKernelLaunch.h"
#include "MTIANativeFunctions.h"

namespace torch_mtia {
namespace {

// Of a product of (..., rows, inner) by (..., inner, columns).
uint64_t product_cost(const at::Tensor& left, const at::Tensor& right) {
  const int64_t columns = right.dim() > 1 ? right.size(-1) : 1;
  return cost_of_operations(2 * static_cast<uint64_t>(left.numel()) * static_cast<uint64_t>(columns));
}

// The meta function leaves to the kernel whether the bias can be expanded; raises what the CPU's raises.
void check_bias(const at::Tensor& bias, const at::Tensor& out, const char* name) {
  if (!at::is_expandable_to(bias.sizes(), out.sizes())) (void)at::expand_size(bias, out.sizes(), name);
}

template <typename Kernel, typename... Arguments>
void run_product(const Operator& op, const at::Tensor& left, const at::Tensor& right, const at::Tensor& out,
                 const Arguments&... arguments) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", left.dtype(), " != ", right.dtype());
  run_cpu_kernel(
      {op, 1, product_cost(left, right)}, out.device(),
      [](const auto&... kept) { StructuredCall<Kernel, 1>::run(kept...); }, keep(arguments)..., keep_output(out));
}

void check_product_dtypes(const char* name, const at::Tensor& left, const at::Tensor& right, at::ScalarType out_dtype) {
  const auto dtype = left.scalar_type();
  TORCH_CHECK(dtype == right.scalar_type(), name, ": expected matrices of one dtype, but got ", dtype, " and ",
              right.scalar_type());
  TORCH_CHECK(out_dtype == dtype || (out_dtype == at::kFloat && (dtype == at::kHalf || dtype == at::kBFloat16)), name,
              ": out_dtype must be the dtype of the inputs, or float32 for half and bfloat16 inputs");
}

}  // namespace
}  // namespace torch_mtia

namespace at::native {

TORCH_IMPL_FUNC(mm_out_mtia)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
  at::assert_no_internal_overlap(out);
  torch_mtia::run_product<structured_mm_out_cpu>("aten::mm", self, mat2, out, self, mat2);
}

TORCH_IMPL_FUNC(bmm_out_mtia)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
  torch_mtia::run_product<structured_bmm_out_cpu>("aten::bmm", self, mat2, out, self, mat2);
}

TORCH_IMPL_FUNC(addmm_out_mtia)
(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
  at::assert_no_internal_overlap(out);
  torch_mtia::check_bias(self, out, "addmm_out");
  torch_mtia::run_product<structured_addmm_out_cpu>("aten::addmm", mat1, mat2, out, self, mat1, mat2, beta, alpha);
}

TORCH_IMPL_FUNC(addmm_activation_out_mtia)
(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha, bool use_gelu,
 const Tensor& out) {
  at::assert_no_internal_overlap(out);
  torch_mtia::check_bias(self, out, "addmm_activation_out");
  torch_mtia::run_product<structured_addmm_activation_out_cpu>("aten::_addmm_activation", mat1, mat2, out, self, mat1,
                                                               mat2, beta, alpha, use_gelu);
}

TORCH_IMPL_FUNC(baddbmm_out_mtia)
(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
  torch_mtia::run_product<structured_baddbmm_out_cpu>("aten::baddbmm", batch1, batch2, out, self, batch1, batch2, beta,
                                                      alpha);
}

TORCH_IMPL_FUNC(addmv_out_mtia)
(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha, const Tensor& out) {
  // Without columns the CPU kernel gives the result the size of the bias.
  const auto bias = expand_size(self, {mat.size(0)}, "addmv_out");
  if (beta.toComplexDouble() != 0.0 && !out.is_same(*bias)) at::assert_no_internal_overlap(out);  // the bias is copied
  torch_mtia::run_product<structured_addmv_out_cpu>("aten::addmv", mat, vec, out, *bias, mat, vec, beta, alpha);
}

// With `out_dtype`, the operands are converted, and so products and sums have its precision.

Tensor& mm_dtype_out_mtia(const Tensor& self, const Tensor& mat2, ScalarType out_dtype, Tensor& out) {
  torch_mtia::check_product_dtypes("mm", self, mat2, out_dtype);
  return at::mm_out(out, self.to(out_dtype), mat2.to(out_dtype));
}
Tensor mm_dtype_mtia(const Tensor& self, const Tensor& mat2, ScalarType out_dtype) {
  torch_mtia::check_product_dtypes("mm", self, mat2, out_dtype);
  return at::mm(self.to(out_dtype), mat2.to(out_dtype));
}

Tensor& bmm_dtype_out_mtia(const Tensor& self, const Tensor& mat2, ScalarType out_dtype, Tensor& out) {
  torch_mtia::check_product_dtypes("bmm", self, mat2, out_dtype);
  return at::bmm_out(out, self.to(out_dtype), mat2.to(out_dtype));
}
Tensor bmm_dtype_mtia(const Tensor& self, const Tensor& mat2, ScalarType out_dtype) {
  torch_mtia::check_product_dtypes("bmm", self, mat2, out_dtype);
  return at::bmm(self.to(out_dtype), mat2.to(out_dtype));
}

Tensor& addmm_dtype_out_mtia(const Tensor& self, const Tensor& mat1, const Tensor& mat2, ScalarType out_dtype,
                             const Scalar& beta, const Scalar& alpha, Tensor& out) {
  torch_mtia::check_product_dtypes("addmm", mat1, mat2, out_dtype);
  return at::addmm_out(out, self.to(out_dtype), mat1.to(out_dtype), mat2.to(out_dtype), beta, alpha);
}
Tensor addmm_dtype_mtia(const Tensor& self, const Tensor& mat1, const Tensor& mat2, ScalarType out_dtype,
                        const Scalar& beta, const Scalar& alpha) {
  torch_mtia::check_product_dtypes("addmm", mat1, mat2, out_dtype);
  return at::addmm(self.to(out_dtype), mat1.to(out_dtype), mat2.to(out_dtype), beta, alpha);
}

Tensor& baddbmm_dtype_out_mtia(const Tensor& self, const Tensor& batch1, const Tensor& batch2, ScalarType out_dtype,
                               const Scalar& beta, const Scalar& alpha, Tensor& out) {
  torch_mtia::check_product_dtypes("baddbmm", batch1, batch2, out_dtype);
  return at::baddbmm_out(out, self.to(out_dtype), batch1.to(out_dtype), batch2.to(out_dtype), beta, alpha);
}
Tensor baddbmm_dtype_mtia(const Tensor& self, const Tensor& batch1, const Tensor& batch2, ScalarType out_dtype,
                          const Scalar& beta, const Scalar& alpha) {
  torch_mtia::check_product_dtypes("baddbmm", batch1, batch2, out_dtype);
  return at::baddbmm(self.to(out_dtype), batch1.to(out_dtype), batch2.to(out_dtype), beta, alpha);
}

}  // namespace at::native
