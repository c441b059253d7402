// Matrix products: what they cost and what is checked, which library computes them, addmv, and those that convert their
// operands.
//
// Note [Products of fp32]
// ATen leaves products of fp32 to MKL, which does without AVX-512 on processors that are not Intel's: 116 of the 260
// GFLOP/s that oneDNN reaches on one core of a Zen 5. ATen has oneDNN too, in an operator for what Inductor fuses
// on the CPU. It takes longer to begin, and where one of the matrices is narrow MKL is the quicker one.
// For one row times a matrix MKL takes 0.9 us where the matrix has 64 x 256 numbers, and the loop of multiply_row 0.3,
// with nothing spent on the way to it. Of larger matrices than the second-level cache holds, both wait for memory.
// torch.backends.mkldnn.flags(enabled=False) leaves all to MKL, and gives the CPU device's results to the last bit.
//
// Note [Products of 16 bits]
// Where oneDNN has no instructions for a 16-bit type (float16 without AVX512-FP16, bfloat16 without AVX-512), ATen
// multiplies in loops of its own: a product of 512 x 512 matrices of float16 takes 105 ms on two cores of a Zen 5, and
// 1.4 ms through float32. Results are rounded once, from sums of float32, and so about as close as the CPU device's,
// and not equal to them to the last bit. Small products stay ATen's, and so do one or two rows times a matrix whose
// columns are contiguous, which its loops are quick at. The larger operand is converted in parts that the caches hold:
// a conversion of all of it would wait for fresh pages, and expanded batches would take memory that they do not have.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/addmv_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/baddbmm_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/dot_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/vdot_native.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>

#include "../processor/attributes.h"
#include "BatchInvariant.h"
#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "MTIANativeFunctions.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

using Four = float __attribute__((vector_size(16)));
using Eight = float __attribute__((vector_size(32)));
using Sixteen = float __attribute__((vector_size(64)));

template <typename Vector>
[[gnu::always_inline]] inline void add_products(Vector& sums, const float* left, const float* right) {
  Vector a;
  Vector b;
  std::memcpy(&a, left, sizeof(a));
  std::memcpy(&b, right, sizeof(b));
  sums += a * b;
}

[[gnu::always_inline]] inline float dot(const float* left, const float* right, int64_t count) {
  Sixteen even{};
  Sixteen odd{};
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    add_products(even, left + i, right + i);
    add_products(odd, left + i + 16, right + i + 16);
  }
  for (; i + 16 <= count; i += 16) add_products(even, left + i, right + i);
  even += odd;
  Eight eights[2];
  std::memcpy(&eights, &even, sizeof(even));
  eights[0] += eights[1];
  Four fours[2];
  std::memcpy(&fours, &eights[0], sizeof(eights[0]));
  Four four = fours[0] + fours[1];
  for (; i + 4 <= count; i += 4) add_products(four, left + i, right + i);
  float sum = (four[0] + four[2]) + (four[1] + four[3]);
  for (; i < count; ++i) sum += left[i] * right[i];
  return sum;
}

// out[j] = bias[j] + the sum over i < depth of row[i] * right[i + j * step], for j < columns. No bias: null.
VECTORIZED void multiply_row(const float* row, const float* right, int64_t step, const float* bias, float* out,
                             int64_t depth, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    const float product = dot(row, right + j * step, depth);
    out[j] = bias == nullptr ? product : bias[j] + product;
  }
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

using Multiply = decltype(&multiply_in_order);

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

// For two matrices, or two batches of matrices.
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

// alpha * left @ right + beta * bias, on host aliases, in a work item. `bias` is broadcast, and not read where beta is
// 0. Where the result `shares` memory with an operand, or with the bias and is not the bias, it is made apart.
void multiply_with(Multiply multiply, const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha,
                   const at::Tensor& bias, const at::Scalar& beta, bool shares, const at::Tensor& out) {
  const at::DisableRecordFunctionGuard unseen;  // by profilers, which have the operator
  const at::Tensor result = shares ? at::empty_like(out, at::MemoryFormat::Contiguous) : out;
  multiply(left, right, alpha, is_set(beta) ? bias.expand(out.sizes()) : result, beta, result);
  if (shares) out.copy_(result);
}

void multiply_as_floats(const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha,
                        const at::Tensor& bias, const at::Scalar& beta, const at::Tensor& out) {
  const auto multiply = left.dim() == 2 ? multiply_matrices : multiply_batches;
  multiply(left, right, {alpha.to<float>(), beta.to<float>()}, bias, out);
}

// A matmul of ours, or null: ATen's.
Multiply own_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  if (is_batch_invariant() && multiplies_in_order(out.scalar_type()) && left.scalar_type() == out.scalar_type() &&
      right.scalar_type() == out.scalar_type()) {
    return multiply_in_order;
  }
  return is_quicker_as_floats(left, right, out) ? multiply_as_floats : nullptr;
}

// The meta function leaves to the kernel whether the bias can be expanded; raises what the CPU's raises.
void check_bias(const at::Tensor& bias, const at::Tensor& out, const char* name) {
  at::assert_no_internal_overlap(out);
  if (bias.sizes() == out.sizes()) return at::assert_no_partial_overlap(out, bias);
  if (!at::is_expandable_to(bias.sizes(), out.sizes())) (void)at::expand_size(bias, out.sizes(), name);
}

void check_product_dtypes(const char* name, const at::Tensor& left, const at::Tensor& right, at::ScalarType out_dtype) {
  const auto dtype = left.scalar_type();
  TORCH_CHECK(dtype == right.scalar_type(), name, ": expected matrices of one dtype, but got ", dtype, " and ",
              right.scalar_type());
  TORCH_CHECK(out_dtype == dtype || (out_dtype == at::kFloat && (dtype == at::kHalf || dtype == at::kBFloat16)), name,
              ": out_dtype must be the dtype of the inputs, or float32 for half and bfloat16 inputs");
}

enum class Product { kATen, kOneDNN, kRow };

bool is_mkl_slow() {
#if defined(__x86_64__)
  static const bool is_slow =
      at::globalContext().hasMKLDNN() && at::get_cpu_capability() == "AVX512" && __builtin_cpu_is("intel") == 0;
  return is_slow;
#else
  return false;  // there is no MKL
#endif
}

// See Note [Products of fp32].
Product quickest_product(const at::Tensor& left, const at::Tensor& right) {
  constexpr int64_t kLeastRows = 8;
  constexpr int64_t kLeastColumns = 32;
  constexpr int64_t kLeastProducts = int64_t{4} << 20;
  constexpr int64_t kMostOfRow = int64_t{512} << 10;  // numbers of a matrix that the second-level cache holds
  if (!is_mkl_slow() || left.scalar_type() != at::kFloat || !at::globalContext().userEnabledMkldnn()) {
    return Product::kATen;
  }
  const int64_t rows = left.size(0);
  const int64_t depth = left.size(1);
  const int64_t columns = right.size(1);
  const bool has_whole_columns = right.stride(0) == 1 && right.stride(1) >= depth;
  const double products = static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  if (rows == 1) {
    const bool is_plain = has_whole_columns && left.stride(1) == 1 && !left.is_neg() && !right.is_neg();
    return is_plain && depth > 0 && products <= kMostOfRow ? Product::kRow : Product::kATen;
  }
  const bool is_plain = (right.stride(1) == 1 && right.stride(0) >= columns) || has_whole_columns;  // taken as it is
  return is_plain && rows >= kLeastRows && columns >= kLeastColumns && depth >= kLeastRows && products >= kLeastProducts
             ? Product::kOneDNN
             : Product::kATen;
}

// Whether it is the same for each row of a product.
bool is_row(const at::Tensor& self, int64_t columns) {
  const bool is_repeated = self.dim() == 1 || (self.dim() == 2 && (self.size(0) == 1 || self.stride(0) == 0));
  return is_repeated && self.size(-1) == columns && self.stride(-1) == 1 && !self.is_neg() && !self.is_conj();
}

// Whether it is quicker to put the bias into a result row by row than through an iterator, as ATen does: some 0.3 us.
bool is_quick_to_fill(const at::Tensor& bias, const at::Tensor& out) {
  constexpr size_t kMostBytes = size_t{16} << 10;
  return is_row(bias, out.size(1)) && bias.scalar_type() == out.scalar_type() && out.stride(1) == 1 &&
         out.nbytes() <= kMostBytes && !bias.is_alias_of(out) && !out.is_conj() && !out.is_neg();
}

void fill_rows(const at::Tensor& row, const at::Tensor& out) {
  const size_t size = static_cast<size_t>(out.size(1)) * out.itemsize();
  const size_t step = static_cast<size_t>(out.stride(0)) * out.itemsize();
  const void* const from = row.const_data_ptr();
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < out.size(0); ++i, to += step) std::memcpy(to, from, size);
}

// left @ right + bias; see Note [Products of fp32].
void multiply_in_onednn(const at::Tensor& left, const at::Tensor& right, const std::optional<at::Tensor>& bias,
                        const at::Tensor& out) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                            c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto linear =
      c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_linear_pointwise", "").typed<Linear>();
  const int64_t columns = right.size(1);
  const at::Tensor weight =
      at::native::as_strided_tensorimpl(right, {columns, right.size(0)}, {right.stride(1), right.stride(0)});
  const auto row = bias ? std::optional(at::native::as_strided_tensorimpl(*bias, {columns}, {1})) : std::nullopt;
  OutputOffer offer(out);
  std::array results{linear.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), left, weight, row, "none",
                                       c10::List<std::optional<at::Scalar>>(), std::nullopt)};
  offer.settle(results);
}

void multiply_single_row(const at::Tensor& left, const at::Tensor& right, const float* bias, const at::Tensor& out) {
  multiply_row(left.const_data_ptr<float>(), right.const_data_ptr<float>(), right.stride(1), bias,
               out.mutable_data_ptr<float>(), left.size(1), right.size(1));
}

}  // namespace

bool onednn_has(const char* question) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(question, "").typed<bool()>().call();
}

uint64_t product_cost(const at::Tensor& left, const at::Tensor& right) {
  TORCH_CHECK(left.scalar_type() == right.scalar_type(),
              "expected m1 and m2 to have the same dtype, but got: ", left.dtype(), " != ", right.dtype());
  const int64_t columns = right.dim() > 1 ? right.size(-1) : 1;
  return cost_of_operations(2 * static_cast<uint64_t>(left.numel()) * static_cast<uint64_t>(columns));
}

void addmm_activation_out_check(const at::Tensor& self, const at::Tensor& /*mat1*/, const at::Tensor& /*mat2*/,
                                const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/, bool /*use_gelu*/,
                                const at::Tensor& out) {
  check_bias(self, out, "addmm_activation_out");
}

}  // namespace torch_mtia

namespace at::native {
namespace {

torch_mtia::OwnedTensor own_term(const Tensor& tensor, const Scalar& factor) {
  using torch_mtia::core::OldBytes;
  return torch_mtia::own(tensor, torch_mtia::is_set(factor) ? OldBytes::kRead : OldBytes::kPassedThrough);
}

// See Note [Products of 16 bits] and Note [Batch invariance].
void launch_own(const torch_mtia::Operator& op, torch_mtia::Multiply multiply, const Tensor& left, const Tensor& right,
                const Scalar& alpha, const Tensor& bias, const Scalar& beta, const Tensor& out) {
  if (multiply == torch_mtia::multiply_as_floats) {  // raise at the call for factors that are none
    alpha.to<float>();
    beta.to<float>();
  }
  const bool reads_bias = torch_mtia::is_set(beta);
  const bool shares =
      left.is_alias_of(out) || right.is_alias_of(out) || (reads_bias && bias.is_alias_of(out) && !bias.is_same(out));
  if (reads_bias) {
    TORCH_CHECK(bias.scalar_type() == out.scalar_type(), op.name,
                ": expected self and the matrices to have the same dtype, but got ", bias.scalar_type(), " and ",
                out.scalar_type());
  }
  torch_mtia::run_cpu_kernel({op, 1, torch_mtia::product_cost(left, right), false, torch_mtia::Order::kFixed},
                             out.device(), torch_mtia::multiply_with, torch_mtia::own(multiply), torch_mtia::own(left),
                             torch_mtia::own(right), torch_mtia::own(alpha),
                             own_term(reads_bias ? bias : Tensor(), beta), torch_mtia::own(beta),
                             torch_mtia::own(shares), torch_mtia::own_output(out));
}

}  // namespace

TORCH_IMPL_FUNC(mm_out_mtia)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
  using torch_mtia::Product;
  at::assert_no_internal_overlap(out);
  if (const auto own = torch_mtia::own_product(self, mat2, out)) {
    return launch_own({"aten::mm", "own_product"}, own, self, mat2, 1, Tensor(), 0, out);
  }
  const Product quickest = torch_mtia::quickest_product(self, mat2);
  const Product product = quickest == Product::kRow && out.stride(1) != 1 ? Product::kATen : quickest;
  torch_mtia::run_cpu_kernel(
      {{"aten::mm", "mm_out_cpu"}, 1, torch_mtia::product_cost(self, mat2)}, out.device(),
      [](const Tensor& self, const Tensor& mat2, Product product, const Tensor& out) {
        if (product == Product::kOneDNN) return torch_mtia::multiply_in_onednn(self, mat2, std::nullopt, out);
        if (product == Product::kRow) return torch_mtia::multiply_single_row(self, mat2, nullptr, out);
        torch_mtia::StructuredCall<structured_mm_out_cpu, 1>::run(self, mat2, out);
      },
      torch_mtia::own(self), torch_mtia::own(mat2), torch_mtia::own(product), torch_mtia::own_output(out));
}

TORCH_IMPL_FUNC(addmm_out_mtia)
(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
  using torch_mtia::Product;
  torch_mtia::check_bias(self, out, "addmm_out");
  if (const auto own = torch_mtia::own_product(mat1, mat2, out)) {
    return launch_own({"aten::addmm", "own_product"}, own, mat1, mat2, alpha, self, beta, out);
  }
  Product product = torch_mtia::quickest_product(mat1, mat2);
  // oneDNN and the loop for a row read the bias while they write the result.
  if (!torch_mtia::is_row(self, mat2.size(1)) || !beta.equal(1.0) || !alpha.equal(1.0) || self.is_alias_of(out) ||
      (product == Product::kRow && out.stride(1) != 1)) {
    product = Product::kATen;
  }
  const bool fills_rows = product == Product::kATen && !beta.equal(0.0) && torch_mtia::is_quick_to_fill(self, out);
  torch_mtia::run_cpu_kernel(
      {{"aten::addmm", "addmm_out_cpu"}, 1, torch_mtia::product_cost(mat1, mat2)}, out.device(),
      [](const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
         Product product, bool fills_rows, const Tensor& out) {
        if (product == Product::kOneDNN) return torch_mtia::multiply_in_onednn(mat1, mat2, self, out);
        if (product == Product::kRow) {
          return torch_mtia::multiply_single_row(mat1, mat2, self.const_data_ptr<float>(), out);
        }
        if (fills_rows) torch_mtia::fill_rows(self, out);
        torch_mtia::StructuredCall<structured_addmm_out_cpu, 1>::run(fills_rows ? out : self, mat1, mat2, beta, alpha,
                                                                     out);
      },
      own_term(self, beta), torch_mtia::own(mat1), torch_mtia::own(mat2), torch_mtia::own(beta), torch_mtia::own(alpha),
      torch_mtia::own(product), torch_mtia::own(fills_rows), torch_mtia::own_output(out));
}

TORCH_IMPL_FUNC(bmm_out_mtia)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
  if (const auto own = torch_mtia::own_product(self, mat2, out)) {
    return launch_own({"aten::bmm", "own_product"}, own, self, mat2, 1, Tensor(), 0, out);
  }
  torch_mtia::run_cpu_kernel(
      {{"aten::bmm", "bmm_out_cpu"}, 1, torch_mtia::product_cost(self, mat2)}, out.device(),
      [](const auto&... owned) { torch_mtia::StructuredCall<structured_bmm_out_cpu, 1>::run(owned...); },
      torch_mtia::own(self), torch_mtia::own(mat2), torch_mtia::own_output(out));
}

TORCH_IMPL_FUNC(baddbmm_out_mtia)
(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
  if (const auto own = torch_mtia::own_product(batch1, batch2, out)) {
    return launch_own({"aten::baddbmm", "own_product"}, own, batch1, batch2, alpha, self, beta, out);
  }
  torch_mtia::run_cpu_kernel(
      {{"aten::baddbmm", "baddbmm_out_cpu"}, 1, torch_mtia::product_cost(batch1, batch2)}, out.device(),
      [](const auto&... owned) { torch_mtia::StructuredCall<structured_baddbmm_out_cpu, 1>::run(owned...); },
      own_term(self, beta), torch_mtia::own(batch1), torch_mtia::own(batch2), torch_mtia::own(beta),
      torch_mtia::own(alpha), torch_mtia::own_output(out));
}

TORCH_IMPL_FUNC(addmv_out_mtia)
(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha, const Tensor& out) {
  // Without columns the CPU kernel gives the result the size of the bias.
  const auto bias = expand_size(self, {mat.size(0)}, "addmv_out");
  if (torch_mtia::is_batch_invariant() && torch_mtia::multiplies_in_order(out.scalar_type())) {
    at::addmm_out(const_cast<Tensor&>(static_cast<const Tensor&>(out.unsqueeze(1))), bias->unsqueeze(1), mat,
                  vec.unsqueeze(1), beta, alpha);
    return;
  }
  const bool copies_bias = beta.toComplexDouble() != 0.0 && !out.is_same(*bias);
  if (copies_bias) torch_mtia::check_bias(*bias, out, "addmv_out");
  torch_mtia::run_cpu_kernel(
      {{"aten::addmv", "addmv_out_cpu"}, 1, torch_mtia::product_cost(mat, vec)}, out.device(),
      [](const auto&... owned) { torch_mtia::StructuredCall<structured_addmv_out_cpu, 1>::run(owned...); },
      own_term(*bias, beta), torch_mtia::own(mat), torch_mtia::own(vec), torch_mtia::own(beta), torch_mtia::own(alpha),
      torch_mtia::own_output(out));
}

namespace {

torch_mtia::Shape dot_shape(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(), "] and src [",
              other.numel(), "] to have the same number of elements, but got ", self.numel(), " and ", other.numel(),
              " elements respectively");
  return {torch_mtia::like(self, {})};
}

// A row times a column; undefined in other modes and for other dtypes.
Tensor dot_in_order(const Tensor& left, const Tensor& right) {
  if (!torch_mtia::is_batch_invariant() || !torch_mtia::multiplies_in_order(left.scalar_type())) return {};
  return at::mm(left.unsqueeze(0), right.unsqueeze(1)).squeeze();
}

}  // namespace

Tensor dot_mtia(const Tensor& self, const Tensor& tensor) {
  const auto shape = dot_shape(self, tensor);
  if (Tensor product = dot_in_order(self, tensor); product.defined()) return product;
  return torch_mtia::make_with_cpu_kernel<1>(
      {{"aten::dot", "dot"}}, self.device(), shape, [](const auto&... owned) { return dot(owned...); },
      torch_mtia::own(self), torch_mtia::own(tensor))[0];
}
Tensor vdot_mtia(const Tensor& self, const Tensor& other) {
  const auto shape = dot_shape(self, other);
  if (Tensor product = dot_in_order(self.conj(), other); product.defined()) return product;
  return torch_mtia::make_with_cpu_kernel<1>(
      {{"aten::vdot", "vdot"}}, self.device(), shape, [](const auto&... owned) { return vdot(owned...); },
      torch_mtia::own(self), torch_mtia::own(other))[0];
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
