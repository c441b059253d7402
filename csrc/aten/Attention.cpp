// Scaled dot product attention on the CPU's flash attention. PyTorch gives an out-of-tree device's fused attention one
// pair of operators; whatever they do not do (dropout, gradients of the mask) is left to the composite.
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/empty_like.h>

#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "BatchInvariant.h"
#include "CPUKernelLaunch.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::absent;
using torch_mtia::like;
using torch_mtia::make_with_cpu_kernel;
using torch_mtia::own;
using torch_mtia::with_strides_of;

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
  if (!torch_mtia::HostView::is_offered() || torch_mtia::is_batch_invariant()) {
    return static_cast<int64_t>(SDPBackend::math);
  }
  const int64_t choice = _fused_sdp_choice_cpp(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  return choice == static_cast<int64_t>(SDPBackend::flash_attention) ? static_cast<int64_t>(SDPBackend::overrideable)
                                                                     : choice;
}

REGISTER_DEVICE_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_mtia)

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
_scaled_dot_product_fused_attention_overrideable_mtia(const Tensor& query, const Tensor& key, const Tensor& value,
                                                      const std::optional<Tensor>& attn_bias, double dropout_p,
                                                      bool is_causal, bool /*return_debug_mask*/,
                                                      std::optional<double> scale) {
  // The strides are those that the meta functions of these operators promise, on which compiled code relies.
  const auto shapes = [&]() -> torch_mtia::TwoShapes {
    if (!sizes_fit(query, key, value, dropout_p, attn_bias)) return std::nullopt;
    return {with_strides_of(query), like(query, query.sizes().slice(0, 3), toOpMathType(query.scalar_type()))};
  };
  constexpr auto run = [](auto&&... arguments) { return _scaled_dot_product_flash_attention_cpu(arguments...); };
  const uint64_t least = query.dim() == 4 && key.dim() == 4 ? cost(query, key) : 0;
  auto [output, logsumexp] = make_with_cpu_kernel<2>(
      {"aten::_scaled_dot_product_fused_attention_overrideable", 1, least}, query.device(), shapes(), run, own(query),
      own(key), own(value), own(dropout_p), own(is_causal), own(attn_bias), own(scale));
  const Tensor no_dropout = torch_mtia::empty_of(like(query, {}, kLong));
  return {output, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), no_dropout, no_dropout, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> _scaled_dot_product_fused_attention_overrideable_backward_mtia(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& attn_bias,
    std::array<bool, 4> grad_input_mask, const Tensor& out, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
    const Tensor& /*cum_seq_k*/, int64_t /*max_q*/, int64_t /*max_k*/, double dropout_p, bool is_causal,
    const Tensor& /*philox_seed*/, const Tensor& /*philox_offset*/, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!attn_bias.defined() || !grad_input_mask[3],
                              "fused attention has no gradient of the mask on this device; use the math backend");
  const auto mask = optional(attn_bias);
  const auto shapes = [&]() -> torch_mtia::ThreeShapes {
    if (!sizes_fit(query, key, value, dropout_p, mask) || grad_out.sizes() != query.sizes() ||
        out.sizes() != query.sizes()) {
      return std::nullopt;
    }
    return {grad_input_mask[0] ? with_strides_of(query) : absent(),
            grad_input_mask[1] ? with_strides_of(key) : absent(),
            grad_input_mask[2] ? with_strides_of(value) : absent()};
  };
  constexpr auto run = [](auto&&... arguments) {
    return _scaled_dot_product_flash_attention_cpu_backward(arguments...);
  };
  const uint64_t least = query.dim() == 4 && key.dim() == 4 ? 2 * cost(query, key) : 0;
  auto [grad_query, grad_key, grad_value] =
      make_with_cpu_kernel<3>({"aten::_scaled_dot_product_fused_attention_overrideable_backward", 1, least},
                              query.device(), shapes(), run, own(grad_out), own(query), own(key), own(value), own(out),
                              own(logsumexp), own(dropout_p), own(is_causal), own(mask), own(scale));
  return {grad_query, grad_key, grad_value, Tensor()};
}

}  // namespace at::native
