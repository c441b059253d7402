// Operators that add 16-bit rows to rows that indices choose: see Note [Float32 accumulation] in InFloat32.h. With
// other dtypes they are ATen's, but for gradients of bags that are divided by how often a row is used.
// And histograms, whose sums are counts.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/_embedding_bag_dense_backward_native.h>
#include <ATen/ops/_index_put_impl_native.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding_dense_backward_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/histc_native.h>
#include <ATen/ops/index_add_native.h>
#include <ATen/ops/put_native.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "../processor/attributes.h"
#include "../processor/floats16.h"
#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "InFloat32.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia {

// Sums of 16-bit rows, accumulated in float32.

namespace {

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

// Summand n, in order, counts to the target's row that begins at element keys[n], or to none if keys[n] is negative. A
// target row is rounded once. The bits of the result do not depend on the number of threads.
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

}  // namespace

namespace {

enum BagMode : int64_t { kMean = 1, kMaximum };

// Of elements in a tensor with these sizes and strides, in the order of its dimensions.
std::vector<int64_t> offsets_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int64_t> offsets{0};
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<int64_t> inner;
    inner.reserve(offsets.size() * static_cast<size_t>(sizes[dim]));
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < sizes[dim]; ++i) inner.push_back(offset + i * strides[dim]);
    }
    offsets = std::move(inner);
  }
  return offsets;
}

bool are_adjacent(const std::vector<int64_t>& offsets) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// keys += wrapped index * stride
void add_offsets(std::vector<int64_t>& keys, const at::Tensor& index, int64_t dim, int64_t size, int64_t stride) {
  const at::Tensor dense = index.to(at::kLong).contiguous();
  const auto* const values = dense.const_data_ptr<int64_t>();
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t value = values[i];
    TORCH_CHECK_INDEX(value >= -size && value < size, "index ", value, " is out of bounds for dimension ", dim,
                      " with size ", size);
    keys[i] += (value < 0 ? value + size : value) * stride;
  }
}

// Where the elements of a row are, in the dimensions of a target that are left when its rows are chosen.
std::vector<int64_t> columns_of(const at::Tensor& target, at::IntArrayRef dims) {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (const int64_t dim : dims) {
    sizes.push_back(target.size(dim));
    strides.push_back(target.stride(dim));
  }
  return offsets_of(sizes, strides);
}

void add_rows(const at::Tensor& target, const std::vector<int64_t>& columns, const std::vector<int64_t>& keys,
              const at::Tensor& rows, at::ArrayRef<float> factors = {}) {
  sum_rows({target, are_adjacent(columns) ? at::IntArrayRef() : at::IntArrayRef(columns)}, keys,
           {rows.reshape({static_cast<int64_t>(keys.size()), static_cast<int64_t>(columns.size())}), {}, factors},
           RowSum::kAdded);
}

bool fit_together(const std::vector<at::Tensor>& indices) {
  return std::all_of(indices.begin(), indices.end(), [&](const at::Tensor& one) {
    return std::all_of(indices.begin(), indices.end(), [&](const at::Tensor& other) {
      return !one.defined() || !other.defined() || at::are_expandable(one.sizes(), other.sizes());
    });
  });
}

}  // namespace

at::Tensor& index_put(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                      bool accumulate, bool unsafe) {
  // Raises for what does not fit. Where indices do not, that is an IndexError, which a trial takes for one about the
  // data.
  const auto leave_to_aten = [&]() -> at::Tensor& {
    return at::native::_index_put_impl_(self, indices, values, accumulate, unsafe);
  };
  if (!accumulate || !at::isReducedFloatingType(self.scalar_type()) || values.scalar_type() != self.scalar_type() ||
      values.numel() == 0) {
    return leave_to_aten();
  }
  std::vector<at::Tensor> expanded = at::native::expandTensors(self, indices);
  if (!fit_together(expanded)) return leave_to_aten();
  expanded = at::expand_outplace(expanded);
  expanded.resize(static_cast<size_t>(self.dim()));
  const bool adjacent = at::native::hasContiguousSubspace(expanded);
  std::vector<int64_t> kept;
  std::vector<int64_t> indexed;
  int64_t before = 0;  // dimensions that come before those of the indices in the result
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    const bool is_indexed = expanded[static_cast<size_t>(dim)].defined();
    (is_indexed ? indexed : kept).push_back(dim);
    if (adjacent && !is_indexed && indexed.empty()) ++before;
  }
  if (indexed.empty()) return leave_to_aten();

  const at::Tensor& first = expanded[static_cast<size_t>(indexed.front())];
  std::vector<int64_t> keys(static_cast<size_t>(first.numel()), 0);
  for (const int64_t dim : indexed) {
    add_offsets(keys, expanded[static_cast<size_t>(dim)], dim, self.size(dim), self.stride(dim));
  }
  const std::vector<int64_t> columns = columns_of(self, kept);

  // The result of indexing has the sizes (kept before, index, kept after). Its rows are those of the values.
  std::vector<int64_t> sizes;
  for (const int64_t dim : kept) sizes.push_back(self.size(dim));
  sizes.insert(sizes.begin() + before, first.sizes().begin(), first.sizes().end());
  if (!at::is_expandable_to(values.sizes(), sizes)) return leave_to_aten();
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + before, order.begin() + before + first.dim());
  add_rows(self, columns, keys, values.expand(sizes).permute(order));
  return self;
}

at::Tensor& put(at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate) {
  if (!accumulate || !at::isReducedFloatingType(self.scalar_type()) || source.scalar_type() != self.scalar_type() ||
      index.scalar_type() != at::kLong || index.numel() != source.numel() || index.numel() == 0) {
    return at::native::put_(self, index, source, accumulate);
  }
  const at::Tensor dense = index.contiguous();
  const int64_t numel = self.numel();
  std::vector<int64_t> keys(static_cast<size_t>(dense.numel()));
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t value = dense.const_data_ptr<int64_t>()[i];
    TORCH_CHECK_INDEX(value >= -numel && value < numel, "out of range: tried to access index ", value,
                      " on a tensor of ", numel, " elements.");
    int64_t rest = value < 0 ? value + numel : value;
    for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
      keys[i] += rest % self.size(dim) * self.stride(dim);
      rest /= self.size(dim);
    }
  }
  add_rows(self, {0}, keys, source);
  return self;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad_output, const at::Tensor& indices, int64_t num_weights,
                                    int64_t padding_idx, bool scale_grad_by_freq) {
  const bool fits = (indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt) &&
                    grad_output.dim() > 0 && indices.numel() > 0 && grad_output.size(-1) > 0;
  if (!fits || !at::isReducedFloatingType(grad_output.scalar_type())) {
    return at::native::embedding_dense_backward_cpu(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq);
  }
  const int64_t width = grad_output.size(-1);
  const at::Tensor rows = grad_output.contiguous().view({indices.numel(), width});
  at::Tensor result = at::zeros({num_weights, width}, grad_output.options());
  const at::Tensor dense = indices.to(at::kLong).contiguous();
  std::vector<int64_t> keys(static_cast<size_t>(indices.numel()));
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t index = dense.const_data_ptr<int64_t>()[i];
    keys[i] = index == padding_idx || index < 0 || index >= num_weights ? -1 : index * width;
  }
  sum_rows({result}, keys, {rows}, scale_grad_by_freq ? RowSum::kMean : RowSum::kSum);
  return result;
}

void index_add_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                   const at::Scalar& alpha, const at::Tensor& out) {
  if (!at::isReducedFloatingType(self.scalar_type()) || source.scalar_type() != self.scalar_type() || self.dim() == 0 ||
      source.dim() != self.dim() || index.numel() == 0) {
    return StructuredCall<at::native::structured_index_add_cpu_out, 1>::run(self, dim, index, source, alpha, out);
  }
  if (!out.is_same(self)) out.copy_(self);
  std::vector<int64_t> keys(static_cast<size_t>(index.numel()), 0);
  const at::Tensor dense = index.to(at::kLong).contiguous();
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t value = dense.const_data_ptr<int64_t>()[i];
    const bool fits = value >= 0 && value < self.size(dim);
    TORCH_CHECK_INDEX(fits || self.dim() > 1, "index out of range in self");
    TORCH_CHECK(fits, "index ", value, " is out of bounds for dimension ", dim, " with size ", self.size(dim));
    keys[i] = value * out.stride(dim);
  }
  std::vector<int64_t> kept;
  for (int64_t other = 0; other < self.dim(); ++other) {
    if (other != dim) kept.push_back(other);
  }
  const auto factor = alpha.to<float>();
  const std::vector<float> factors(factor == 1 ? 0 : keys.size(), factor);
  add_rows(out, columns_of(out, kept), keys, source.movedim(dim, 0), factors);
}

at::Tensor embedding_bag_dense_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offset2bag,
                                        const at::Tensor& bag_size, const at::Tensor& maximum_indices,
                                        int64_t num_weights, bool scale_grad_by_freq, int64_t mode,
                                        const std::optional<at::Tensor>& per_sample_weights, int64_t padding_idx) {
  const bool is_weighted = per_sample_weights.has_value() && per_sample_weights->defined();
  if (scale_grad_by_freq && mode != kMaximum && !at::isReducedFloatingType(grad.scalar_type())) {
    // ATen's kernel divides by the count of another index than the row's.
    const at::Tensor sums =
        embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights,
                                     /*scale_grad_by_freq=*/false, mode, per_sample_weights, padding_idx);
    return at::div(sums, at::bincount(indices, {}, num_weights).clamp_min(1).unsqueeze(1));
  }
  if (!at::isReducedFloatingType(grad.scalar_type()) || grad.numel() == 0 || indices.numel() == 0 ||
      (is_weighted && per_sample_weights->scalar_type() != grad.scalar_type())) {
    return at::native::_embedding_bag_dense_backward_cpu(grad, indices, offset2bag, bag_size, maximum_indices,
                                                         num_weights, scale_grad_by_freq, mode, per_sample_weights,
                                                         padding_idx);
  }
  const int64_t width = grad.size(1);
  const at::Tensor rows = grad.contiguous();
  at::Tensor result = at::zeros({num_weights, width}, grad.options());
  const auto as_indices = [](const at::Tensor& tensor) { return tensor.to(at::kLong).contiguous(); };
  const at::Tensor sizes = as_indices(bag_size);
  const auto* const bag_sizes = sizes.const_data_ptr<int64_t>();
  std::vector<int64_t> keys;
  const auto add_key = [&](int64_t index, int64_t column) {
    TORCH_CHECK_INDEX(index < num_weights, "index ", index, " is out of range of ", num_weights, " weights");
    keys.push_back(index == padding_idx || index < 0 ? -1 : index * width + column);
  };
  if (mode == kMaximum) {
    const at::Tensor maxima = as_indices(maximum_indices);
    keys.reserve(static_cast<size_t>(rows.numel()));
    for (int64_t i = 0; i < rows.numel(); ++i) {
      const bool is_empty = bag_sizes[i / width] == 0;
      add_key(is_empty ? -1 : maxima.const_data_ptr<int64_t>()[i], i % width);
    }
    sum_rows({result}, keys, {rows.view({-1, 1})}, RowSum::kSum);
    return result;
  }
  const at::Tensor all = as_indices(indices);
  const at::Tensor bags = as_indices(offset2bag);
  const auto* const bag_of = bags.const_data_ptr<int64_t>();
  const at::Tensor weights = is_weighted ? per_sample_weights->to(at::kFloat).contiguous() : at::Tensor();
  std::vector<float> factors(static_cast<size_t>(all.numel()), 1.0F);
  for (int64_t i = 0; i < all.numel(); ++i) {
    add_key(all.const_data_ptr<int64_t>()[i], 0);
    float& factor = factors[static_cast<size_t>(i)];
    if (is_weighted) factor = weights.const_data_ptr<float>()[i];
    if (mode == kMean) factor /= static_cast<float>(bag_sizes[bag_of[i]]);
  }
  sum_rows({result}, keys, {rows, at::IntArrayRef(bag_of, all.numel()), factors},
           scale_grad_by_freq ? RowSum::kMean : RowSum::kSum);
  return result;
}

// Histograms. ATen's CPU kernel counts floating-point numbers only; CUDA's counts integers too, and models that route
// tokens to experts rely on it.
namespace {

// Bins of [least, most], the last of which has `most` too. `Wide` holds bins * (most - least).
template <typename Wide, typename Integer>
void count(const at::Tensor& self, Wide least, Wide most, at::Tensor& hist) {
  const at::Tensor numbers = self.contiguous();
  const at::Tensor counts = at::zeros_like(hist, at::MemoryFormat::Contiguous);
  auto* const totals = counts.mutable_data_ptr<Integer>();
  const int64_t bins = counts.numel();
  for (const Wide number : c10::ArrayRef<Integer>(numbers.const_data_ptr<Integer>(), numbers.numel())) {
    if (number < least || number > most) continue;
    const auto bin = static_cast<int64_t>((number - least) * bins / (most - least));
    auto& total = totals[std::min(bin, bins - 1)];
    // Wraps, as CUDA's do where a dtype is too small for its count.
    total = static_cast<Integer>(static_cast<uint64_t>(total) + 1);
  }
  hist.copy_(counts);
}

}  // namespace

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& hist) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    const auto run = in_float32([](auto&&... arguments) { at::native::histogram_histc_out(arguments...); });
    run(self, bins, min, max, hist);
    return hist;
  }
  AT_DISPATCH_INTEGRAL_TYPES(self.scalar_type(), "histc", [&] {
    using Limits = std::numeric_limits<int64_t>;
    __int128 least = min.to<int64_t>();
    __int128 most = max.to<int64_t>();
    if (least == most && self.numel() > 0) {
      const auto [smallest, largest] = at::aminmax(self);
      least = smallest.item<int64_t>();
      most = largest.item<int64_t>();
    }
    if (least == most) {
      least -= 1;
      most += 1;
    }
    const bool fits = (most - least) * bins <= Limits::max() && least >= Limits::min() && most <= Limits::max();
    if (fits) return count<int64_t, scalar_t>(self, static_cast<int64_t>(least), static_cast<int64_t>(most), hist);
    count<__int128, scalar_t>(self, least, most, hist);
  });
  return hist;
}

}  // namespace torch_mtia
