#include "RowSums.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sort.h>

#include <algorithm>

#include "../processor/floats16.h"
#include "../processor/vectorized.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia {
namespace {

constexpr int64_t kBlock = 256;    // columns: the sums of a block stay in registers and in the first cache
constexpr int64_t kStep = 32;      // of constant size, which is what lets the compiler use vectors
constexpr int64_t kTerms = 64;     // are added up by themselves first: the error grows with the number of such groups
constexpr int64_t kGrain = 32768;  // elements that are worth a thread

struct Task {
  const int64_t* keys;       // sorted
  const int64_t* positions;  // before sorting
  int64_t count;
  void* target;
  const int64_t* columns;  // null: adjacent
  const void* source;
  const int64_t* row_of;  // null: the position
  const float* factors;   // null: 1
  int64_t row_stride;
  int64_t column_stride;
  int64_t num_columns;
  RowSum kind;
};

// Calls step(i) for i in [0, count), most of them in loops of constant size.
template <typename Step>
INLINED void for_steps(int64_t count, Step step) {
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    for (int64_t j = 0; j < kStep; ++j) step(i + j);
  }
  for (; i < count; ++i) step(i);
}

template <typename T>
INLINED void add_row(float* sums, const T* row, int64_t stride, int64_t count, float factor) {
  if (stride != 1) {
    for (int64_t i = 0; i < count; ++i) sums[i] += widened(row[i * stride]) * factor;
  } else if (factor != 1) {
    for_steps(count, [&](int64_t i) __attribute__((always_inline)) { sums[i] += widened(row[i]) * factor; });
  } else {
    for_steps(count, [&](int64_t i) __attribute__((always_inline)) { sums[i] += widened(row[i]); });
  }
}

// One target row, a block of columns from `first`: the summands are those at [begin, end) of the sorted keys.
template <typename T>
INLINED void sum_block(const Task& task, int64_t begin, int64_t end, int64_t first, int64_t count) {
  float sums[kBlock] = {};
  float part[kBlock];
  const auto* const source = static_cast<const T*>(task.source) + first * task.column_stride;
  for (int64_t from = begin; from < end; from += kTerms) {
    const int64_t to = std::min(end, from + kTerms);
    std::fill_n(part, count, 0.0F);
    for (int64_t i = from; i < to; ++i) {
      const int64_t summand = task.positions[i];
      const int64_t row = task.row_of != nullptr ? task.row_of[summand] : summand;
      const float factor = task.factors != nullptr ? task.factors[summand] : 1;
      add_row(part, source + row * task.row_stride, task.column_stride, count, factor);
    }
    for_steps(count, [&](int64_t i) __attribute__((always_inline)) { sums[i] += part[i]; });
  }
  if (task.kind == RowSum::kMean) {
    for (int64_t i = 0; i < count; ++i) sums[i] /= static_cast<float>(end - begin);
  }
  T* const row = static_cast<T*>(task.target) + task.keys[begin];
  if (task.columns == nullptr) {
    if (task.kind == RowSum::kAdded) add_row(sums, row + first, 1, count, 1);
    return for_steps(count, [&](int64_t i) __attribute__((always_inline)) { narrow(sums[i], row[first + i]); });
  }
  for (int64_t i = 0; i < count; ++i) {
    T& element = row[task.columns[first + i]];
    if (task.kind == RowSum::kAdded) sums[i] += widened(element);
    narrow(sums[i], element);
  }
}

// The target rows whose first summand is at [begin, end) of the sorted keys.
template <typename T>
INLINED void sum_rows_from(const Task& task, int64_t begin, int64_t end, int64_t first) {
  const int64_t count = std::min(kBlock, task.num_columns - first);
  const auto end_of_row = [&](int64_t start) {
    int64_t next = start + 1;
    while (next < task.count && task.keys[next] == task.keys[start]) ++next;
    return next;
  };
  int64_t start = begin;
  while (start > 0 && start < end && task.keys[start] == task.keys[start - 1]) ++start;
  while (start < end) {
    const int64_t next = end_of_row(start);
    sum_block<T>(task, start, next, first, count);
    start = next;
  }
}

VECTORIZED void sum_rows_of(BFloat16* /*type*/, const Task& task, int64_t begin, int64_t end, int64_t first) {
  sum_rows_from<BFloat16>(task, begin, end, first);
}
VECTORIZED void sum_rows_of(Float16* /*type*/, const Task& task, int64_t begin, int64_t end, int64_t first) {
  sum_rows_from<Float16>(task, begin, end, first);
}

}  // namespace

void sum_rows(const TargetRows& target, c10::ArrayRef<int64_t> keys, const Summands& summands, RowSum kind) {
  const at::Tensor& source = summands.rows;
  if (keys.empty() || source.size(1) == 0) return;
  const at::Tensor given =
      at::from_blob(const_cast<int64_t*>(keys.data()), static_cast<int64_t>(keys.size()), at::kLong);
  const auto [sorted, positions] = given.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto* const all_keys = sorted.const_data_ptr<int64_t>();
  const int64_t left_out = std::lower_bound(all_keys, all_keys + keys.size(), 0) - all_keys;
  const Task task{all_keys + left_out,
                  positions.const_data_ptr<int64_t>() + left_out,
                  static_cast<int64_t>(keys.size()) - left_out,
                  target.tensor.mutable_data_ptr(),
                  target.columns.empty() ? nullptr : target.columns.data(),
                  source.const_data_ptr(),
                  summands.row_of.empty() ? nullptr : summands.row_of.data(),
                  summands.factors.empty() ? nullptr : summands.factors.data(),
                  source.stride(0),
                  source.stride(1),
                  source.size(1),
                  kind};
  if (task.count == 0) return;
  // Summands times blocks of columns are shared among threads, so that one long row of many columns is, too.
  const int64_t blocks = (task.num_columns + kBlock - 1) / kBlock;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::min(kBlock, task.num_columns));
  at::parallel_for(0, task.count * blocks, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t from = begin % task.count;
      const int64_t to = std::min(task.count, from + end - begin);
      const int64_t first = begin / task.count * kBlock;
      if (source.scalar_type() == at::kBFloat16) {
        sum_rows_of(static_cast<BFloat16*>(nullptr), task, from, to, first);
      } else {
        sum_rows_of(static_cast<Float16*>(nullptr), task, from, to, first);
      }
      begin += to - from;
    }
  });
}

}  // namespace torch_mtia
