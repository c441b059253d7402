// Products of 8-bit integers, and with weights of 8 bits.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_int_mm_native.h>
#include <ATen/ops/_weight_int8pack_mm_native.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "CPUKernels.h"
#include "ShapeFunctions.h"

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
