#include "RowProduct.h"

#include <cstring>

#include "../processor/vectorized.h"

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

}  // namespace

VECTORIZED void multiply_row(const float* row, const float* right, int64_t step, const float* bias, float* out,
                             int64_t depth, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    const float product = dot(row, right + j * step, depth);
    out[j] = bias == nullptr ? product : bias[j] + product;
  }
}

}  // namespace torch_mtia
