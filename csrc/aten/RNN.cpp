// Recurrent networks: layers, and the cells that they are made of elsewhere.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_native.h>
#include <ATen/ops/mkldnn_rnn_layer_native.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>

#include <map>
#include <mutex>

#include "../device/DeviceType.h"
#include "CPUKernelLaunch.h"
#include "CPUKernels.h"
#include "MTIANativeFunctions.h"

// LSTM layers. Where PyTorch's CPU device has oneDNN compute a layer for the whole sequence, so does this: as one work
// item. Otherwise the operator is made of others, as upstream has it.

namespace at::native {
namespace {

using torch_mtia::absent;
using torch_mtia::like;
using torch_mtia::make_with_cpu_kernel;
using torch_mtia::own;
using torch_mtia::TensorShape;

constexpr int64_t kLSTM = 2;  // of oneDNN's kinds, as PyTorch numbers them
constexpr int64_t kGates = 4;

bool is_in_onednn(ScalarType dtype) {
  static const bool has_bfloat16 = torch_mtia::onednn_has("mkldnn::_is_mkldnn_bf16_supported");
  static const bool has_half = torch_mtia::onednn_has("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == kFloat || (dtype == kBFloat16 && has_bfloat16) || (dtype == kHalf && has_half);
}

struct LayerSizes {
  int64_t steps, batch, features, hidden;

  auto operator<=>(const LayerSizes&) const = default;
  uint64_t cost() const {
    return torch_mtia::cost_of_operations(static_cast<uint64_t>(2 * steps * batch * kGates * hidden) *
                                          static_cast<uint64_t>(features + hidden));
  }
};

// The CPU kernel trusts them.
LayerSizes checked_sizes(const Tensor& input, const Tensor& weight_ih, const Tensor& weight_hh, const Tensor& bias_ih,
                         const Tensor& bias_hh, const Tensor& hx, const Tensor& cx, int64_t mode, int64_t hidden,
                         bool has_biases) {
  TORCH_CHECK(mode == kLSTM, "mkldnn_rnn_layer: the mode is ", mode, ", and only LSTM (", kLSTM, ") is implemented");
  TORCH_CHECK(input.dim() == 3, "mkldnn_rnn_layer: expected input with 3 dimensions, and got ", input.dim());
  const LayerSizes sizes{input.size(0), input.size(1), input.size(2), hidden};
  const auto check = [](const char* name, const Tensor& tensor, IntArrayRef expected) {
    TORCH_CHECK(tensor.sizes() == expected, "mkldnn_rnn_layer: expected ", name, " of ", expected, ", and got ",
                tensor.sizes());
  };
  check("weight_ih", weight_ih, {kGates * hidden, sizes.features});
  check("weight_hh", weight_hh, {kGates * hidden, hidden});
  if (has_biases) check("bias_ih", bias_ih, {kGates * hidden});
  if (has_biases) check("bias_hh", bias_hh, {kGates * hidden});
  for (const Tensor* state : {&hx, &cx}) {
    TORCH_CHECK(state->numel() == sizes.batch * hidden, "mkldnn_rnn_layer: expected states of ", sizes.batch, " x ",
                hidden, ", and got ", state->sizes());
  }
  return sizes;
}

// What oneDNN keeps for the backward. It alone knows, and PyTorch's library does not export its questions: what the CPU
// kernel allocates beside its results is the answer.
int64_t ask_for_workspace(const LayerSizes& sizes, ScalarType dtype) {
  const auto empty = [dtype](IntArrayRef shape) { return at::empty(shape, at::device(kCPU).dtype(dtype)); };
  const Tensor input = empty({sizes.steps, sizes.batch, sizes.features});
  const Tensor weight_ih = empty({kGates * sizes.hidden, sizes.features});
  const Tensor weight_hh = empty({kGates * sizes.hidden, sizes.hidden});
  const Tensor state = empty({sizes.batch, sizes.hidden});
  const std::array<Tensor, 4> made{empty({sizes.steps, sizes.batch, sizes.hidden}), at::empty_like(state),
                                   at::empty_like(state), empty({kGates * sizes.hidden})};
  torch_mtia::MemoryOffer offer;
  for (const Tensor& tensor : made) offer.add(tensor.mutable_data_ptr(), tensor.nbytes());
  offer.refuse_others();
  try {
    const AutoGradMode training(true);
    (void)at::native::mkldnn_rnn_layer(input, weight_ih, weight_hh, {}, {}, state, state, /*reverse=*/false, {}, kLSTM,
                                       sizes.hidden, /*num_layers=*/1, /*has_biases=*/false, /*bidirectional=*/false,
                                       /*batch_first=*/false, /*train=*/true);
  } catch (const torch_mtia::MemoryOffer::Refused& refused) {
    return static_cast<int64_t>(refused.nbytes);
  }
  TORCH_INTERNAL_ASSERT(false, "oneDNN's LSTM keeps nothing for its backward");
}

TensorShape workspace_shape(const Tensor& input, const LayerSizes& sizes) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<ScalarType, LayerSizes>, int64_t>();
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair key{input.scalar_type(), sizes};
  auto found = known->find(key);
  if (found == known->end()) found = known->emplace(key, ask_for_workspace(sizes, input.scalar_type())).first;
  return like(input, found->second, kByte);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> mkldnn_rnn_layer_mtia(
    const Tensor& input, const Tensor& weight0, const Tensor& weight1, const Tensor& weight2, const Tensor& weight3,
    const Tensor& hx_, const Tensor& cx_, bool reverse, IntArrayRef batch_sizes, int64_t mode, int64_t hidden_size,
    int64_t num_layers, bool has_biases, bool bidirectional, bool batch_first, bool train) {
  const auto sizes = checked_sizes(input, weight0, weight1, weight2, weight3, hx_, cx_, mode, hidden_size, has_biases);
  const bool keeps_workspace = GradMode::is_enabled();  // which the CPU kernel asks, and not `train`
  torch_mtia::FourShapes shapes = std::nullopt;
  if (is_in_onednn(input.scalar_type()) && input.numel() > 0) {
    shapes = {like(input, {sizes.steps, sizes.batch, hidden_size}), like(hx_), like(cx_),
              keeps_workspace ? workspace_shape(input, sizes) : absent()};
  }
  constexpr auto run = [](bool keeps_workspace, auto&&... arguments) {
    const AutoGradMode mode(keeps_workspace);
    return at::native::mkldnn_rnn_layer(arguments...);
  };
  auto [output, hy, cy, workspace] = make_with_cpu_kernel<4>(
      {"aten::mkldnn_rnn_layer", 1, sizes.cost()}, input.device(), shapes, run, own(keeps_workspace),
      own(input.contiguous()), own(weight0), own(weight1), own(weight2), own(weight3), own(hx_.contiguous()),
      own(cx_.contiguous()), own(reverse), own(batch_sizes), own(mode), own(hidden_size), own(num_layers),
      own(has_biases), own(bidirectional), own(batch_first), own(train));
  return {output, hy, cy, workspace};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mkldnn_rnn_layer_backward_mtia(
    const Tensor& input, const Tensor& weight1, const Tensor& weight2, const Tensor& weight3, const Tensor& weight4,
    const Tensor& hx_, const Tensor& cx_tmp, const Tensor& output, const Tensor& hy_, const Tensor& cy_,
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_hy,
    const std::optional<Tensor>& grad_cy, bool reverse, int64_t mode, int64_t hidden_size, int64_t num_layers,
    bool has_biases, bool train, bool bidirectional, IntArrayRef batch_sizes, bool batch_first,
    const Tensor& workspace) {
  using torch_mtia::is_given;
  if (!is_given(grad_output) && !is_given(grad_hy) && !is_given(grad_cy)) return {};
  const auto sizes =
      checked_sizes(input, weight1, weight2, weight3, weight4, hx_, cx_tmp, mode, hidden_size, has_biases);
  const auto check = [](const Tensor& tensor, IntArrayRef expected) {
    TORCH_CHECK(tensor.sizes() == expected, "mkldnn_rnn_layer_backward: expected a result or gradient of ", expected,
                ", and got ", tensor.sizes());
  };
  check(output, {sizes.steps, sizes.batch, hidden_size});
  check(hy_, hx_.sizes());
  check(cy_, cx_tmp.sizes());
  if (is_given(grad_output)) check(*grad_output, output.sizes());
  if (is_given(grad_hy)) check(*grad_hy, hy_.sizes());
  if (is_given(grad_cy)) check(*grad_cy, cy_.sizes());
  torch_mtia::Shapes<7> shapes = std::nullopt;
  if (is_in_onednn(input.scalar_type()) && input.numel() > 0) {
    TORCH_CHECK(workspace.nbytes() == static_cast<size_t>(workspace_shape(input, sizes).sizes[0]),
                "mkldnn_rnn_layer_backward: the workspace is not that of a forward with these sizes");
    const auto gradient = [](const Tensor& tensor) { return like(tensor, tensor.sizes(), kFloat); };
    const TensorShape bias = like(weight1, {kGates * hidden_size}, kFloat);
    shapes = {gradient(input), gradient(weight1), gradient(weight2), bias, bias, gradient(hx_), gradient(cx_tmp)};
  }
  constexpr auto run = [](auto&&... arguments) { return at::native::mkldnn_rnn_layer_backward(arguments...); };
  const auto gradients = make_with_cpu_kernel<7>(
      {"aten::mkldnn_rnn_layer_backward", 1, 2 * sizes.cost()}, input.device(), shapes, run, own(input.contiguous()),
      own(weight1), own(weight2), own(weight3), own(weight4), own(hx_.contiguous()), own(cx_tmp.contiguous()),
      own(output.contiguous()), own(hy_.contiguous()), own(cy_.contiguous()), own(grad_output), own(grad_hy),
      own(grad_cy), own(reverse), own(mode), own(hidden_size), own(num_layers), own(has_biases), own(train),
      own(bidirectional), own(batch_sizes), own(batch_first), own(workspace));
  return std::tuple_cat(gradients);
}

namespace {

bool is_differentiated(const Tensor& tensor) {
  return GradMode::is_enabled() && tensor.requires_grad();
}

// Whether the CPU would have oneDNN compute it, in that dtype.
bool is_fused(const Tensor& input, TensorList hx, TensorList params, ScalarType dtype, int64_t num_layers,
              bool has_biases, bool bidirectional, bool batch_first) {
  if (!at::globalContext().hasMKLDNN() || !at::globalContext().userEnabledMkldnn()) return false;
  if (!is_in_onednn(dtype) || (dtype == kHalf && GradMode::is_enabled())) return false;
  const int64_t states = num_layers * (bidirectional ? 2 : 1);
  if (input.dim() != 3 || hx.size() != 2 || params.size() != static_cast<size_t>(states * (has_biases ? 4 : 2))) {
    return false;
  }
  bool is_traced = false;
  bool has_gradients = false;
  const auto is_like_input = [&](const Tensor& tensor) {
    is_traced = is_traced || tensor.key_set().has(DispatchKey::Python);
    has_gradients = has_gradients || is_differentiated(tensor);
    return tensor.device() == input.device() && tensor.scalar_type() == input.scalar_type() &&
           !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !tensor._fw_grad(/*level=*/0).defined();
  };
  if (!is_like_input(input) || !std::all_of(hx.begin(), hx.end(), is_like_input) ||
      !std::all_of(params.begin(), params.end(), is_like_input)) {
    return false;
  }
  // A compiled graph runs without gradients, where the kernel keeps no workspace for the graph's backward.
  if (is_traced && has_gradients) return false;
  // A state of another size is that of an LSTM with projections, or an error.
  const std::array<int64_t, 3> state{states, input.size(batch_first ? 0 : 1), hx[0].dim() == 3 ? hx[0].size(2) : 0};
  return input.numel() > 0 && hx[0].sizes() == state && hx[1].sizes() == state;
}

std::tuple<Tensor, Tensor, Tensor> lstm_mtia(const Tensor& input, TensorList hx, TensorList params, bool has_biases,
                                             int64_t num_layers, double dropout, bool train, bool bidirectional,
                                             bool batch_first) {
  const auto device = torch_mtia::device_type();
  const bool casts = at::autocast::is_autocast_enabled(device) && input.scalar_type() != kDouble;
  const ScalarType dtype = casts ? at::autocast::get_autocast_dtype(device) : input.scalar_type();
  if (!is_fused(input, hx, params, dtype, num_layers, has_biases, bidirectional, batch_first)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  const auto run = [&](const Tensor& input, TensorList hx, TensorList params) {
    std::tuple<Tensor, Tensor, Tensor> results;
    auto& [output, hy, cy] = results;
    // Made of operators that find their device by their tensors.
    lstm_mkldnn_stub(kCPU, output, hy, cy, input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                     batch_first);
    return results;
  };
  if (!casts) return run(input, hx, params);
  // As autocast does for the CPU's layers.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return run(at::autocast::cached_cast(dtype, input, device), at::autocast::cached_cast(dtype, hx, device),
             at::autocast::cached_cast(dtype, params, device));
}

}  // namespace
}  // namespace at::native

// lstm is made of other operators, and autograd differentiates those: hence a kernel that calls them, under both keys.
MTIA_LIBRARY_IMPL(aten, kAutograd, m) {
  m.impl("lstm.input", &at::native::lstm_mtia);
}
MTIA_LIBRARY_IMPL(aten, kBackend, m) {
  m.impl("lstm.input", &at::native::lstm_mtia);
}

// LSTM and GRU cells, which PyTorch's recurrent networks ask a backend for behind PrivateUse1, as they ask CUDA. For
// mtia they use the operators that these are made of. What is kept for the backward, and in which order, is CUDA's.

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
