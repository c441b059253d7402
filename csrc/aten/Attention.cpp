// Scaled dot product attention on the CPU's flash attention. PyTorch gives an out-of-tree device's fused attention one
// pair of operators; whatever they do not do (dropout, gradients of the mask) is left to the composite.
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/empty_like.h>

#include "../device/Door.h"
#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::new_output;

uint64_t cost(const Tensor& query, const Tensor& key) {
  return torch_mtia::cost_of_operations(4 * static_cast<uint64_t>(query.numel()) * static_cast<uint64_t>(key.size(2)));
}

bool sizes_fit(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p,
               const std::optional<Tensor>& mask) {
  return dropout_p == 0.0 && query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() &&
         query.size(0) == key.size(0) && query.size(3) == key.size(3) && query.size(3) > 0 && key.size(1) > 0 &&
         query.size(1) % key.size(1) == 0 &&
         (!mask || !mask->defined() ||
          ((mask->dim() == 2 || mask->dim() == 4) && mask->size(-1) == key.size(2) && mask->size(-2) == query.size(2) &&
           mask->scalar_type() == query.scalar_type()));
}

std::optional<Tensor> optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
}

}  // namespace

int64_t _fused_sdp_choice_mtia(const Tensor& query, const Tensor& key, const Tensor& value,
                               const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                               std::optional<double> scale, bool enable_gqa) {
  if (!torch_mtia::HostView::is_offered()) return static_cast<int64_t>(SDPBackend::math);
  const int64_t choice = _fused_sdp_choice_cpp(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  return choice == static_cast<int64_t>(SDPBackend::flash_attention) ? static_cast<int64_t>(SDPBackend::overrideable)
                                                                     : choice;
}

REGISTER_DOOR_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_mtia)

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
_scaled_dot_product_fused_attention_overrideable_mtia(const Tensor& query, const Tensor& key, const Tensor& value,
                                                      const std::optional<Tensor>& attn_bias, double dropout_p,
                                                      bool is_causal, bool /*return_debug_mask*/,
                                                      std::optional<double> scale) {
  using Kernel = HostFunction<&_scaled_dot_product_flash_attention_cpu>;
  Kernel::check("aten::_scaled_dot_product_fused_attention_overrideable",
                sizes_fit(query, key, value, dropout_p, attn_bias), query, key, value, dropout_p, is_causal, attn_bias,
                scale);
  const auto statistics = query.options().dtype(toOpMathType(query.scalar_type()));
  // The strides are those that the meta functions of these operators promise, on which compiled code relies.
  const std::array<Tensor, 2> outputs{at::empty_like(query),
                                      new_output({query.size(0), query.size(1), query.size(2)}, statistics)};
  Kernel::run({"aten::_scaled_dot_product_fused_attention_overrideable", 1, cost(query, key)}, query.device(), outputs,
              query, key, value, dropout_p, is_causal, attn_bias, scale);
  const Tensor seed_and_offset = new_output({}, query.options().dtype(kLong));  // of the dropout that there is not
  return {outputs[0],  outputs[1],      Tensor(),        Tensor(), query.size(2),
          key.size(2), seed_and_offset, seed_and_offset, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> _scaled_dot_product_fused_attention_overrideable_backward_mtia(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& attn_bias,
    std::array<bool, 4> grad_input_mask, const Tensor& out, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
    const Tensor& /*cum_seq_k*/, int64_t /*max_q*/, int64_t /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& /*philox_seed*/, const Tensor& /*philox_offset*/, std::optional<double> scale) {
  using Kernel = HostFunction<&_scaled_dot_product_flash_attention_cpu_backward>;
  TORCH_CHECK_NOT_IMPLEMENTED(!attn_bias.defined() || !grad_input_mask[3],
                              "fused attention has no gradient of the mask on this device; use the math backend");
  const auto mask = optional(attn_bias);
  Kernel::check("aten::_scaled_dot_product_fused_attention_overrideable_backward",
                sizes_fit(query, key, value, dropout_p, mask) && grad_out.sizes() == query.sizes() &&
                    out.sizes() == query.sizes(),
                grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, mask, scale);
  const auto make = [&](size_t i, const Tensor& tensor) {
    return grad_input_mask[i] ? at::empty_like(tensor) : Tensor();
  };
  const std::array<Tensor, 3> grads{make(0, query), make(1, key), make(2, value)};
  Kernel::run({"aten::_scaled_dot_product_fused_attention_overrideable_backward", 1, 2 * cost(query, key)},
              query.device(), grads, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, mask, scale);
  return {grads[0], grads[1], grads[2], Tensor()};
}

}  // namespace at::native
