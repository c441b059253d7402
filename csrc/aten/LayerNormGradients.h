// Gradients of layer normalization for inputs of 16 bits, accumulated in float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_mtia {

struct LayerNormGradients {
  const at::Tensor& grad_out;  // (rows, columns), contiguous, as the input is
  const at::Tensor& input;
  const at::Tensor& mean;  // one for each row, contiguous and of the input's dtype, as rstd is
  const at::Tensor& rstd;
  const at::Tensor& weight;  // float32 and contiguous; undefined: ones
  int64_t rows;
  int64_t columns;
  // Outputs; undefined: not wanted. That of the input has its dtype, those of the parameters are float32.
  const at::Tensor& grad_input;
  const at::Tensor& grad_weight;
  const at::Tensor& grad_bias;
};

// The bits of the results do not depend on the number of threads.
void layer_norm_gradients(const LayerNormGradients& call);

}  // namespace torch_mtia
