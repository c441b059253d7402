#include "HalfProduct.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/matmul.h>

namespace torch_mtia {
namespace {

bool onednn_has(const char* question) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(question, "").typed<bool()>().call();
}

bool is_slow(at::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool is_half_slow = !onednn_has("mkldnn::_is_mkldnn_fp16_supported");
  static const bool is_bfloat16_slow = !onednn_has("mkldnn::_is_mkldnn_bf16_supported");
  return dtype == at::kHalf ? is_half_slow : dtype == at::kBFloat16 && is_bfloat16_slow;
#else
  return false;  // ATen has other loops there
#endif
}

}  // namespace

bool is_quicker_as_floats(const at::Tensor& left, const at::Tensor& right) {
  constexpr double kLeastProducts = int64_t{32} << 10;
  if (left.scalar_type() != right.scalar_type() || !is_slow(left.scalar_type()) ||
      !at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  const int64_t rows = left.size(-2);
  const bool has_whole_columns = right.stride(-2) == 1;
  const double products = static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
  return products >= kLeastProducts && !(rows == 1 && has_whole_columns);
}

void multiply_as_floats(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  out.copy_(at::matmul(left.to(at::kFloat), right.to(at::kFloat)));
}

void multiply_as_floats(const at::Tensor& bias, const at::Tensor& left, const at::Tensor& right, const at::Scalar& beta,
                        const at::Scalar& alpha, const at::Tensor& out) {
  at::Tensor sums = at::matmul(left.to(at::kFloat), right.to(at::kFloat));
  if (!alpha.equal(1.0)) sums.mul_(alpha);
  if (!beta.equal(0.0)) sums.add_(bias, beta);
  out.copy_(sums);
}

}  // namespace torch_mtia
