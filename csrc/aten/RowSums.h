// Sums of 16-bit rows, accumulated in float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

// The rows of the target: where its elements are, relative to the first of a row.
struct TargetRows {
  const at::Tensor& tensor;             // the dtype and the memory
  c10::ArrayRef<int64_t> columns = {};  // empty: the elements of a row are adjacent
};

enum class RowSum {
  kAdded,  // to the row of the target
  kMean,   // replaces the row of the target: the sum, divided by the number of summands
  kSum,    // replaces it
};

struct Summands {
  const at::Tensor& rows;              // (rows, columns), of 16 bits
  c10::ArrayRef<int64_t> row_of = {};  // of each summand; empty: its own number
  c10::ArrayRef<float> factors = {};   // of each summand; empty: 1
};

// Summand n, in order, counts to the target's row that begins at element keys[n], or to none if keys[n] is negative. A
// target row is rounded once. The bits of the result do not depend on the number of threads.
void sum_rows(const TargetRows& target, c10::ArrayRef<int64_t> keys, const Summands& summands, RowSum kind);

}  // namespace torch_mtia
