// The dispatch stubs of ATen that run on the device: a row each, with the name that errors and the profiler give the
// work, and where that is not everything, what the operator's iterator casts, or a loop of our own. To add one, include
// its header and add a row; the operators that use it come from yaml/native_functions.yaml.
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Fill.h>
#include <ATen/native/IndexKernel.h>
#include <ATen/native/Lerp.h>
#include <ATen/native/LinearAlgebra.h>
#include <ATen/native/PointwiseOps.h>
#include <ATen/native/Pow.h>
#include <ATen/native/RangeFactories.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>

#include "../device/Door.h"
#include "Pointwise.h"
#include "ReducedPrecision.h"

namespace at::native {
namespace {

using torch_mtia::Casts;

// These loops count to an argument and not to the end of their iterator, which makes a difference for an empty one.

void arange_loop(TensorIterator& iter, const Scalar& start, const Scalar& /*steps*/, const Scalar& step) {
  arange_stub(kCPU, iter, start, iter.numel(), step);
}

void linspace_loop(TensorIterator& iter, const Scalar& start, const Scalar& end, int64_t /*steps*/) {
  linspace_stub(kCPU, iter, start, end, iter.numel());
}

void add_loop(TensorIteratorBase& iter, const Scalar& alpha) {
  if (!torch_mtia::add_reduced_precision(iter, alpha)) add_stub(kCPU, iter, alpha);
}

void mul_loop(TensorIteratorBase& iter) {
  if (!torch_mtia::multiply_reduced_precision(iter)) mul_stub(kCPU, iter);
}

// Of a row: a loop in place of the stub's own.
template <auto Loop>
struct Own {};

template <auto& Stub>
auto on_device(const torch_mtia::Operator& op, Casts casts = Casts::kAll) {
  torch_mtia::OnDevice<Stub>::loop.configure(op, casts);
  return &torch_mtia::OnDevice<Stub>::call;
}

template <auto& Stub, auto Loop>
auto on_device(const torch_mtia::Operator& op, Own<Loop> /*own*/) {
  torch_mtia::OnDevice<Stub, Loop>::loop.configure(op, Casts::kAll);
  return &torch_mtia::OnDevice<Stub, Loop>::call;
}

}  // namespace

#define POINTWISE(name, stub, ...) \
  REGISTER_DOOR_DISPATCH(stub, on_device<stub>(torch_mtia::Operator(name, #stub) __VA_OPT__(, ) __VA_ARGS__))

// Unary
POINTWISE("aten::abs", abs_stub)
POINTWISE("aten::acos", acos_stub)
POINTWISE("aten::acosh", acosh_stub)
POINTWISE("aten::angle", angle_stub)
POINTWISE("aten::asin", asin_stub)
POINTWISE("aten::asinh", asinh_stub)
POINTWISE("aten::atan", atan_stub)
POINTWISE("aten::atanh", atanh_stub)
POINTWISE("aten::bitwise_not", bitwise_not_stub)
POINTWISE("aten::ceil", ceil_stub)
POINTWISE("aten::conj_physical", conj_physical_stub)
POINTWISE("aten::cos", cos_stub)
POINTWISE("aten::cosh", cosh_stub)
POINTWISE("aten::digamma", digamma_stub)
POINTWISE("aten::erf", erf_stub)
POINTWISE("aten::erfc", erfc_stub)
POINTWISE("aten::erfinv", erfinv_stub)
POINTWISE("aten::exp", exp_stub)
POINTWISE("aten::exp2", exp2_stub)
POINTWISE("aten::expm1", expm1_stub)
POINTWISE("aten::floor", floor_stub)
POINTWISE("aten::frac", frac_stub)
POINTWISE("aten::frexp", frexp_stub, Casts::kNone)
POINTWISE("aten::i0", i0_stub)
POINTWISE("aten::kaiser_window", kaiser_window_stub)
POINTWISE("aten::lgamma", lgamma_stub)
POINTWISE("aten::log", log_stub)
POINTWISE("aten::log10", log10_stub)
POINTWISE("aten::log1p", log1p_stub)
POINTWISE("aten::log2", log2_stub)
POINTWISE("aten::nan_to_num", nan_to_num_stub)
POINTWISE("aten::neg", neg_stub)
POINTWISE("aten::polygamma", polygamma_stub)
POINTWISE("aten::polygamma", trigamma_stub)
POINTWISE("aten::reciprocal", reciprocal_stub)
POINTWISE("aten::round", round_decimals_stub)
POINTWISE("aten::round", round_stub)
POINTWISE("aten::rsqrt", rsqrt_stub)
POINTWISE("aten::sgn", sgn_stub)
POINTWISE("aten::sign", sign_stub)
POINTWISE("aten::sin", sin_stub)
POINTWISE("aten::sinc", sinc_stub)
POINTWISE("aten::sinh", sinh_stub)
POINTWISE("aten::sqrt", sqrt_stub)
POINTWISE("aten::tan", tan_stub)
POINTWISE("aten::tanh", tanh_stub)
POINTWISE("aten::trunc", trunc_stub)

// Binary and ternary
POINTWISE("aten::add", add_stub, Own<&add_loop>())
POINTWISE("aten::addcdiv", addcdiv_stub)
POINTWISE("aten::addcmul", addcmul_stub)
POINTWISE("aten::addr", addr_stub)
POINTWISE("aten::atan2", atan2_stub)
POINTWISE("aten::bitwise_and", bitwise_and_stub)
POINTWISE("aten::bitwise_left_shift", lshift_stub)
POINTWISE("aten::bitwise_or", bitwise_or_stub)
POINTWISE("aten::bitwise_right_shift", rshift_stub)
POINTWISE("aten::bitwise_xor", bitwise_xor_stub)
POINTWISE("aten::complex", complex_stub, Casts::kNone)
POINTWISE("aten::copysign", copysign_stub)
POINTWISE("aten::div", div_true_stub)
POINTWISE("aten::div", div_trunc_stub)
POINTWISE("aten::floor_divide", div_floor_stub)
POINTWISE("aten::fmod", fmod_stub)
POINTWISE("aten::gcd", gcd_stub)
POINTWISE("aten::heaviside", heaviside_stub)
POINTWISE("aten::hypot", hypot_stub)
POINTWISE("aten::igamma", igamma_stub)
POINTWISE("aten::igammac", igammac_stub)
POINTWISE("aten::lcm", lcm_stub)
POINTWISE("aten::ldexp", ldexp_stub, Casts::kNone)
POINTWISE("aten::lerp", lerp_kernel_scalar_weight)
POINTWISE("aten::lerp", lerp_kernel_tensor_weight)
POINTWISE("aten::logaddexp", logaddexp_stub)
POINTWISE("aten::logaddexp2", logaddexp2_stub)
POINTWISE("aten::mul", mul_stub, Own<&mul_loop>())
POINTWISE("aten::nextafter", nextafter_stub)
POINTWISE("aten::polar", polar_stub, Casts::kNone)
POINTWISE("aten::pow", pow_tensor_scalar_stub)
POINTWISE("aten::pow", pow_tensor_tensor_stub)
POINTWISE("aten::remainder", remainder_stub)
POINTWISE("aten::xlogy", xlogy_stub)

// Comparison, logic, selection
POINTWISE("aten::clamp", clamp_scalar_stub)
POINTWISE("aten::clamp", clamp_stub)
POINTWISE("aten::clamp_max", clamp_max_scalar_stub)
POINTWISE("aten::clamp_min", clamp_min_scalar_stub)
POINTWISE("aten::eq", eq_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::fmax", fmax_stub)
POINTWISE("aten::fmin", fmin_stub)
POINTWISE("aten::ge", ge_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::gt", gt_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::isneginf", isneginf_stub, Casts::kNone)
POINTWISE("aten::isposinf", isposinf_stub, Casts::kNone)
POINTWISE("aten::le", le_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::logical_and", logical_and_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::logical_not", logical_not_stub, Casts::kNone)
POINTWISE("aten::logical_or", logical_or_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::logical_xor", logical_xor_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::lt", lt_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::maximum", maximum_stub)
POINTWISE("aten::minimum", minimum_stub)
POINTWISE("aten::ne", ne_stub, Casts::kAllButBoolOutput)
POINTWISE("aten::signbit", signbit_stub, Casts::kNone)
POINTWISE("aten::where", where_kernel, Casts::kNone)

// Activations and losses
POINTWISE("aten::_add_relu", add_clamp_stub)
POINTWISE("aten::_prelu_kernel", prelu_stub)
POINTWISE("aten::_prelu_kernel_backward", prelu_backward_stub)
POINTWISE("aten::elu", elu_stub)
POINTWISE("aten::elu_backward", elu_backward_stub)
POINTWISE("aten::gelu", GeluKernel)
POINTWISE("aten::gelu_backward", GeluBackwardKernel)
POINTWISE("aten::glu", glu_stub)
POINTWISE("aten::glu_backward", glu_backward_stub)
POINTWISE("aten::glu_jvp", glu_jvp_stub)
POINTWISE("aten::hardshrink", hardshrink_stub)
POINTWISE("aten::hardshrink_backward", shrink_backward_stub)
POINTWISE("aten::hardsigmoid", hardsigmoid_stub)
POINTWISE("aten::hardsigmoid_backward", hardsigmoid_backward_stub)
POINTWISE("aten::hardswish", hardswish_stub)
POINTWISE("aten::hardswish_backward", hardswish_backward_stub)
POINTWISE("aten::hardtanh_backward", hardtanh_backward_stub)
POINTWISE("aten::huber_loss", huber_stub)
POINTWISE("aten::huber_loss_backward", huber_backward_stub)
POINTWISE("aten::leaky_relu", leaky_relu_stub)
POINTWISE("aten::leaky_relu_backward", leaky_relu_backward_stub)
POINTWISE("aten::log_sigmoid_backward", log_sigmoid_backward_stub)
POINTWISE("aten::logit", logit_stub)
POINTWISE("aten::logit_backward", logit_backward_stub)
POINTWISE("aten::mish", mish_stub)
POINTWISE("aten::mish_backward", mish_backward_stub)
POINTWISE("aten::mse_loss", mse_stub)
POINTWISE("aten::mse_loss_backward", mse_backward_stub)
POINTWISE("aten::sigmoid", sigmoid_stub)
POINTWISE("aten::sigmoid_backward", sigmoid_backward_stub)
POINTWISE("aten::silu", silu_stub)
POINTWISE("aten::silu_backward", silu_backward_stub)
POINTWISE("aten::smooth_l1_loss", smooth_l1_stub)
POINTWISE("aten::smooth_l1_loss_backward", smooth_l1_backward_stub)
POINTWISE("aten::softplus", softplus_stub)
POINTWISE("aten::softplus_backward", softplus_backward_stub)
POINTWISE("aten::softshrink", softshrink_stub)
POINTWISE("aten::tanh_backward", tanh_backward_stub)
POINTWISE("aten::threshold", threshold_stub)

// Fills and ranges
POINTWISE("aten::arange", arange_stub, Own<&arange_loop>())
POINTWISE("aten::fill_", fill_stub)
POINTWISE("aten::linspace", linspace_stub, Own<&linspace_loop>())

// Special functions
POINTWISE("aten::special_airy_ai", special_airy_ai_stub)
POINTWISE("aten::special_bessel_j0", special_bessel_j0_stub)
POINTWISE("aten::special_bessel_j1", special_bessel_j1_stub)
POINTWISE("aten::special_bessel_y0", special_bessel_y0_stub)
POINTWISE("aten::special_bessel_y1", special_bessel_y1_stub)
POINTWISE("aten::special_chebyshev_polynomial_t", chebyshev_polynomial_t_stub)
POINTWISE("aten::special_chebyshev_polynomial_u", chebyshev_polynomial_u_stub)
POINTWISE("aten::special_chebyshev_polynomial_v", chebyshev_polynomial_v_stub)
POINTWISE("aten::special_chebyshev_polynomial_w", chebyshev_polynomial_w_stub)
POINTWISE("aten::special_entr", special_entr_stub)
POINTWISE("aten::special_erfcx", special_erfcx_stub)
POINTWISE("aten::special_hermite_polynomial_h", hermite_polynomial_h_stub)
POINTWISE("aten::special_hermite_polynomial_he", hermite_polynomial_he_stub)
POINTWISE("aten::special_i0e", special_i0e_stub)
POINTWISE("aten::special_i1", special_i1_stub)
POINTWISE("aten::special_i1e", special_i1e_stub)
POINTWISE("aten::special_laguerre_polynomial_l", laguerre_polynomial_l_stub)
POINTWISE("aten::special_legendre_polynomial_p", legendre_polynomial_p_stub)
POINTWISE("aten::special_log_ndtr", special_log_ndtr_stub)
POINTWISE("aten::special_modified_bessel_i0", special_modified_bessel_i0_stub)
POINTWISE("aten::special_modified_bessel_i1", special_modified_bessel_i1_stub)
POINTWISE("aten::special_modified_bessel_k0", special_modified_bessel_k0_stub)
POINTWISE("aten::special_modified_bessel_k1", special_modified_bessel_k1_stub)
POINTWISE("aten::special_ndtri", special_ndtri_stub)
POINTWISE("aten::special_scaled_modified_bessel_k0", special_scaled_modified_bessel_k0_stub)
POINTWISE("aten::special_scaled_modified_bessel_k1", special_scaled_modified_bessel_k1_stub)
POINTWISE("aten::special_shifted_chebyshev_polynomial_t", shifted_chebyshev_polynomial_t_stub)
POINTWISE("aten::special_shifted_chebyshev_polynomial_u", shifted_chebyshev_polynomial_u_stub)
POINTWISE("aten::special_shifted_chebyshev_polynomial_v", shifted_chebyshev_polynomial_v_stub)
POINTWISE("aten::special_shifted_chebyshev_polynomial_w", shifted_chebyshev_polynomial_w_stub)
POINTWISE("aten::special_spherical_bessel_j0", special_spherical_bessel_j0_stub)
POINTWISE("aten::special_xlog1py", xlog1py_stub)
POINTWISE("aten::special_zeta", zeta_stub)

// Indexing
POINTWISE("aten::index", index_stub, Casts::kNone)

#undef POINTWISE

}  // namespace at::native
