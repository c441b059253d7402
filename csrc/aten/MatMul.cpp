// Matrix products: what they cost and what is checked, addmv, and those that convert their operands.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv_native.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "MTIANativeFunctions.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

// The meta function leaves to the kernel whether the bias can be expanded; raises what the CPU's raises.
void check_bias(const at::Tensor& bias, const at::Tensor& out, const char* name) {
  at::assert_no_internal_overlap(out);
  if (!at::is_expandable_to(bias.sizes(), out.sizes())) (void)at::expand_size(bias, out.sizes(), name);
}

void check_product_dtypes(const char* name, const at::Tensor& left, const at::Tensor& right, at::ScalarType out_dtype) {
  const auto dtype = left.scalar_type();
  TORCH_CHECK(dtype == right.scalar_type(), name, ": expected matrices of one dtype, but got ", dtype, " and ",
              right.scalar_type());
  TORCH_CHECK(out_dtype == dtype || (out_dtype == at::kFloat && (dtype == at::kHalf || dtype == at::kBFloat16)), name,
              ": out_dtype must be the dtype of the inputs, or float32 for half and bfloat16 inputs");
}

}  // namespace

uint64_t product_cost(const at::Tensor& left, const at::Tensor& right) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", left.dtype(), " != ", right.dtype());
  const int64_t columns = right.dim() > 1 ? right.size(-1) : 1;
  return cost_of_operations(2 * static_cast<uint64_t>(left.numel()) * static_cast<uint64_t>(columns));
}

void mm_out_check(const at::Tensor& /*self*/, const at::Tensor& /*mat2*/, const at::Tensor& out) {
  at::assert_no_internal_overlap(out);
}

void addmm_out_check(const at::Tensor& self, const at::Tensor& /*mat1*/, const at::Tensor& /*mat2*/,
                     const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/, const at::Tensor& out) {
  check_bias(self, out, "addmm_out");
}

void addmm_activation_out_check(const at::Tensor& self, const at::Tensor& /*mat1*/, const at::Tensor& /*mat2*/,
                                const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/, bool /*use_gelu*/,
                                const at::Tensor& out) {
  check_bias(self, out, "addmm_activation_out");
}

}  // namespace torch_mtia

namespace at::native {

TORCH_IMPL_FUNC(addmv_out_mtia)
(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha, const Tensor& out) {
  // Without columns the CPU kernel gives the result the size of the bias.
  const auto bias = expand_size(self, {mat.size(0)}, "addmv_out");
  if (beta.toComplexDouble() != 0.0 && !out.is_same(*bias)) at::assert_no_internal_overlap(out);  // the bias is copied
  torch_mtia::run_cpu_kernel(
      {{"aten::addmv", "addmv_out_cpu"}, 1, torch_mtia::product_cost(mat, vec)}, out.device(),
      [](const auto&... kept) { torch_mtia::StructuredCall<structured_addmv_out_cpu, 1>::run(kept...); },
      torch_mtia::keep(*bias), torch_mtia::keep(mat), torch_mtia::keep(vec), torch_mtia::keep(beta),
      torch_mtia::keep(alpha), torch_mtia::keep_output(out));
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
