#include "LayerNormGradients.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../processor/floats16.h"
#include "../processor/vectorized.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia {
namespace {

constexpr int64_t kLanes = 32;      // sums that a loop has side by side: constant, so that it becomes vectors
constexpr int64_t kMostParts = 64;  // of the rows, each of which has sums of its own for the parameters
constexpr int64_t kLeastRows = 16;  // of a part
constexpr float kHalf = 0.5F;
constexpr int64_t kGrain = 32768;  // elements that are worth a thread

struct Task {
  const void* grad_out;
  const void* input;
  const void* mean;
  const void* rstd;
  const float* weight;
  int64_t columns;
  void* grad_input;
  float epsilon;  // of the dtype
};

// The buffers of a thread, each of as many floats as a row has.
struct Buffers {
  float* normalized;
  float* gradient;
  float* grad_weight;  // sums over rows
  float* grad_bias;
};

// Calls step(i) for i in [0, count): most of them in loops of constant size.
template <typename Step>
INLINED void for_lanes(int64_t count, Step step) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) step(i + lane, lane);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) step(i + lane, lane);
}

INLINED float total(const float* lanes) {
  float sums[kLanes];
  std::copy_n(lanes, kLanes, sums);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

// The statistics of a row were rounded to 16 bits when the forward stored them, and the mean of numbers far from zero
// lost most of its digits. They are computed again: the mean, and without the epsilon, which the backward does not
// know, the deviation, which counts if it is what was stored but for the rounding.
INLINED float refined(float stored, float computed, float tolerance) {
  return std::abs(computed - stored) <= tolerance ? computed : stored;
}

template <typename T>
INLINED void differentiate_row(const Task& task, int64_t row, const Buffers& buffers) {
  const int64_t columns = task.columns;
  const auto count = static_cast<float>(columns);
  const T* const input = static_cast<const T*>(task.input) + row * columns;
  const T* const grad_out = static_cast<const T*>(task.grad_out) + row * columns;
  const float stored_mean = widened(static_cast<const T*>(task.mean)[row]);
  const float stored_rstd = widened(static_cast<const T*>(task.rstd)[row]);
  float* const x = buffers.normalized;
  float* const g = buffers.gradient;

  float sums[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] = widened(input[i]);
    g[i] = widened(grad_out[i]);
    sums[lane] += x[i] - stored_mean;
  });
  const float shift = total(sums) / count;
  const float mean =
      refined(stored_mean, stored_mean + shift,
              task.epsilon * std::abs(stored_mean) + std::numeric_limits<float>::epsilon() / stored_rstd);
  float squares[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] -= mean;
    squares[lane] += x[i] * x[i];
  });
  const float rstd =
      refined(stored_rstd, 1 / std::sqrt(total(squares) / count), kHalf * task.epsilon * std::abs(stored_rstd));

  float* const grad_weight = buffers.grad_weight;
  float* const grad_bias = buffers.grad_bias;
  float products[kLanes] = {};
  float gradients[kLanes] = {};
  for_lanes(columns, [&](int64_t i, int64_t lane) __attribute__((always_inline)) {
    x[i] *= rstd;
    grad_weight[i] += g[i] * x[i];
    grad_bias[i] += g[i];
    g[i] *= task.weight[i];
    products[lane] += g[i] * x[i];
    gradients[lane] += g[i];
  });
  if (task.grad_input == nullptr) return;
  const float slope = total(products) / count;
  const float level = total(gradients) / count;
  T* const grad_input = static_cast<T*>(task.grad_input) + row * columns;
  for_lanes(columns, [&](int64_t i, int64_t /*lane*/) __attribute__((always_inline)) {
    narrow(rstd * (g[i] - level - x[i] * slope), grad_input[i]);
  });
}

VECTORIZED void differentiate_rows(BFloat16* /*type*/, const Task& task, int64_t begin, int64_t end,
                                   const Buffers& buffers) {
  for (int64_t row = begin; row < end; ++row) differentiate_row<BFloat16>(task, row, buffers);
}
VECTORIZED void differentiate_rows(Float16* /*type*/, const Task& task, int64_t begin, int64_t end,
                                   const Buffers& buffers) {
  for (int64_t row = begin; row < end; ++row) differentiate_row<Float16>(task, row, buffers);
}

}  // namespace

void layer_norm_gradients(const LayerNormGradients& call) {
  const int64_t columns = call.columns;
  const bool is_bfloat16 = call.input.scalar_type() == at::kBFloat16;
  const auto width = static_cast<size_t>(columns);
  std::vector<float> ones;
  if (!call.weight.defined()) ones.assign(width, 1.0F);
  const Task task{call.grad_out.const_data_ptr(),
                  call.input.const_data_ptr(),
                  call.mean.const_data_ptr(),
                  call.rstd.const_data_ptr(),
                  call.weight.defined() ? call.weight.const_data_ptr<float>() : ones.data(),
                  columns,
                  call.grad_input.defined() ? call.grad_input.mutable_data_ptr() : nullptr,
                  is_bfloat16 ? 0x1p-7F : 0x1p-10F};
  // How the rows are parted depends on their number alone.
  const int64_t parts = std::clamp<int64_t>(call.rows / kLeastRows, 1, kMostParts);
  std::vector<float> sums(static_cast<size_t>(parts) * 2 * width);
  at::parallel_for(0, parts, std::max<int64_t>(1, parts * kGrain / std::max<int64_t>(1, call.rows * columns)),
                   [&](int64_t first, int64_t last) {
                     std::vector<float> rows(2 * width);
                     for (int64_t part = first; part < last; ++part) {
                       float* const own = sums.data() + static_cast<size_t>(part) * 2 * width;
                       const Buffers buffers{rows.data(), rows.data() + width, own, own + width};
                       const int64_t begin = call.rows * part / parts;
                       const int64_t end = call.rows * (part + 1) / parts;
                       if (is_bfloat16) {
                         differentiate_rows(static_cast<BFloat16*>(nullptr), task, begin, end, buffers);
                       } else {
                         differentiate_rows(static_cast<Float16*>(nullptr), task, begin, end, buffers);
                       }
                     }
                   });
  const auto add_up = [&](const at::Tensor& gradient, size_t offset) {
    if (!gradient.defined()) return;
    auto* const result = gradient.mutable_data_ptr<float>();
    std::fill_n(result, columns, 0.0F);
    for (int64_t part = 0; part < parts; ++part) {
      const float* const own = sums.data() + static_cast<size_t>(part) * 2 * width + offset;
      for (size_t i = 0; i < width; ++i) result[i] += own[i];
    }
  };
  add_up(call.grad_weight, 0);
  add_up(call.grad_bias, width);
}

}  // namespace torch_mtia
