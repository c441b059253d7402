// One row times a matrix, in fp32: see Note [Products of fp32] in MatMul.cpp.
#pragma once

#include <cstdint>

namespace torch_mtia {

// out[j] = bias[j] + the sum over i < depth of row[i] * right[i + j * step], for j < columns. No bias: null.
void multiply_row(const float* row, const float* right, int64_t step, const float* bias, float* out, int64_t depth,
                  int64_t columns);

}  // namespace torch_mtia
