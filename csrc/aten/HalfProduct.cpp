#include "HalfProduct.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>

#include <algorithm>

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

constexpr int64_t kPart = int64_t{512} << 10;  // numbers: 2 MiB as floats
constexpr int64_t kLeastColumns = 64;          // fewer make a slow product

struct Factors {
  float alpha;
  float beta;
};

void finish(at::Tensor sums, Factors factors, const at::Tensor& bias, const at::Tensor& out) {
  if (factors.alpha != 1) sums.mul_(factors.alpha);
  if (factors.beta != 0) sums.add_(bias, factors.beta);
  out.copy_(sums);
}

// The bias has the size of the result.
void multiply_matrices(const at::Tensor& left, const at::Tensor& right, Factors factors, const at::Tensor& bias,
                       const at::Tensor& out) {
  if (left.numel() > right.numel()) return multiply_matrices(right.t(), left.t(), factors, bias.t(), out.t());
  const at::Tensor rows = left.to(at::kFloat);
  const int64_t step = std::max(kPart / right.size(0), kLeastColumns);
  for (int64_t begin = 0; begin < right.size(1); begin += step) {
    const int64_t length = std::min(step, right.size(1) - begin);
    const auto part = [&](const at::Tensor& of) { return of.narrow(1, begin, length); };
    finish(at::mm(rows, part(right).to(at::kFloat)), factors, part(bias), part(out));
  }
}

void multiply_batches(const at::Tensor& left, const at::Tensor& right, Factors factors, const at::Tensor& bias,
                      const at::Tensor& out) {
  const int64_t larger = std::max(left.size(1) * left.size(2), right.size(1) * right.size(2));
  const int64_t step = kPart / larger;
  if (step <= 1) {
    for (int64_t i = 0; i < left.size(0); ++i) multiply_matrices(left[i], right[i], factors, bias[i], out[i]);
    return;
  }
  for (int64_t begin = 0; begin < left.size(0); begin += step) {
    const int64_t length = std::min(step, left.size(0) - begin);
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, length); };
    finish(at::bmm(part(left).to(at::kFloat), part(right).to(at::kFloat)), factors, part(bias), part(out));
  }
}

}  // namespace

bool is_quicker_as_floats(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  constexpr double kLeastProducts = int64_t{32} << 10;
  constexpr int64_t kFewRows = 2;
  if (left.scalar_type() != right.scalar_type() || !is_slow(left.scalar_type()) ||
      !at::globalContext().userEnabledMkldnn() || at::has_internal_overlap(out) == at::MemOverlap::Yes) {
    return false;
  }
  const double products = static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
  const bool is_few_rows = left.size(-2) <= kFewRows && right.stride(-2) == 1;
  return products >= kLeastProducts && !is_few_rows;
}

void multiply_as_floats(const at::Tensor& left, const at::Tensor& right, float alpha, const at::Tensor& bias,
                        float beta, bool shares, const at::Tensor& out) {
  const at::DisableRecordFunctionGuard unseen;  // by profilers, which have the operator
  const at::Tensor result = shares ? at::empty_like(out, at::MemoryFormat::Contiguous) : out;
  const auto multiply = left.dim() == 2 ? multiply_matrices : multiply_batches;
  multiply(left, right, {alpha, beta}, beta == 0 ? result : bias.expand(out.sizes()), result);
  if (shares) out.copy_(result);
}

}  // namespace torch_mtia
