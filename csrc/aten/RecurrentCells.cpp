// LSTM and GRU cells, which PyTorch's recurrent networks ask a backend for behind PrivateUse1, as they ask CUDA. For
// mtia they use the operators that these are made of. What is kept for the backward, and in which order, is CUDA's.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? at::add(gates, *bias) : gates;
}

Tensor sum_over_batch(const Tensor& gradient, bool has_bias) {
  return has_bias ? at::sum(gradient, 0) : Tensor();
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> _thnn_fused_lstm_cell_mtia(const Tensor& input_gates, const Tensor& hidden_gates,
                                                              const Tensor& cx, const std::optional<Tensor>& input_bias,
                                                              const std::optional<Tensor>& hidden_bias) {
  const auto gates = with_bias(input_gates, input_bias).add(with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = at::sigmoid(gates[0]);
  const Tensor forget = at::sigmoid(gates[1]);
  const Tensor cell = at::tanh(gates[2]);
  const Tensor out = at::sigmoid(gates[3]);
  const Tensor cy = forget.mul(cx).addcmul(in, cell);
  return {out.mul(at::tanh(cy)), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> _thnn_fused_lstm_cell_backward_impl_mtia(const std::optional<Tensor>& grad_hy,
                                                                            const std::optional<Tensor>& grad_cy,
                                                                            const Tensor& cx, const Tensor& cy,
                                                                            const Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy && grad_hy->defined();
  const bool has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor tanh_cy = at::tanh(cy);
  const Tensor zero = cx.new_zeros(cx.sizes());
  const Tensor grad_out = has_hy ? grad_hy->mul(tanh_cy) : zero;
  Tensor grad = has_hy ? at::tanh_backward(grad_hy->mul(out), tanh_cy) : zero;
  if (has_cy) grad = grad.add(*grad_cy);
  const Tensor grad_gates =
      at::cat({at::sigmoid_backward(grad.mul(cell), in), at::sigmoid_backward(grad.mul(cx), forget),
               at::tanh_backward(grad.mul(in), cell), at::sigmoid_backward(grad_out, out)},
              1);
  return {grad_gates, grad.mul(forget), sum_over_batch(grad_gates, has_bias)};
}

std::tuple<Tensor, Tensor> _thnn_fused_gru_cell_mtia(const Tensor& input_gates, const Tensor& hidden_gates,
                                                     const Tensor& hx, const std::optional<Tensor>& input_bias,
                                                     const std::optional<Tensor>& hidden_bias) {
  const auto of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = at::sigmoid(of_input[0].add(of_hidden[0]));
  const Tensor update = at::sigmoid(of_input[1].add(of_hidden[1]));
  const Tensor candidate = at::tanh(of_input[2].addcmul(reset, of_hidden[2]));
  return {candidate.addcmul(hx.sub(candidate), update), at::cat({reset, update, candidate, hx, of_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> _thnn_fused_gru_cell_backward_mtia(const Tensor& grad_hy,
                                                                                      const Tensor& workspace,
                                                                                      bool has_bias) {
  const auto kept = workspace.chunk(5, 1);
  const Tensor &reset = kept[0], &update = kept[1], &candidate = kept[2], &hx = kept[3], &of_hidden = kept[4];
  const Tensor grad_update = at::sigmoid_backward(grad_hy.mul(hx.sub(candidate)), update);
  const Tensor grad_candidate = at::tanh_backward(grad_hy.sub(grad_hy.mul(update)), candidate);
  const Tensor grad_reset = at::sigmoid_backward(grad_candidate.mul(of_hidden), reset);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_candidate.mul(reset)}, 1);
  return {grad_input, grad_hidden, grad_hy.mul(update), sum_over_batch(grad_input, has_bias),
          sum_over_batch(grad_hidden, has_bias)};
}

}  // namespace at::native
