#include <ATen/Dispatch.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Math.h>
#include <ATen/native/RangeFactories.h>
#include <ATen/native/cpu/Loops.h>

#include <optional>
#include <type_traits>

#include "../processor/attributes.h"
#include "Pointwise.h"

namespace torch_mtia {
namespace {

using c10::BFloat16;
using c10::Half;

template <typename T>
[[gnu::always_inline]] inline void add_strided(char** data, const int64_t* strides, int64_t count, float alpha) {
  for (int64_t i = 0; i < count; ++i) {
    const auto first = static_cast<float>(*reinterpret_cast<const T*>(data[1] + i * strides[1]));
    const auto second = static_cast<float>(*reinterpret_cast<const T*>(data[2] + i * strides[2]));
    *reinterpret_cast<T*>(data[0] + i * strides[0]) = static_cast<T>(first + alpha * second);
  }
}

template <typename T>
[[gnu::always_inline]] inline void scale_strided(char** data, const int64_t* strides, int64_t count, float scale,
                                                 float offset) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(*reinterpret_cast<const T*>(data[1] + i * strides[1]));
    *reinterpret_cast<T*>(data[0] + i * strides[0]) = static_cast<T>(offset + scale * value);
  }
}

// Constant strides are what lets the compiler use vectors.
template <typename T>
constexpr int64_t kDense[3] = {sizeof(T), sizeof(T), sizeof(T)};

VECTORIZED void add(BFloat16* /*dtype*/, char** data, const int64_t* strides, int64_t count, float alpha) {
  constexpr int64_t kSize = sizeof(BFloat16);
  if (strides[0] == kSize && strides[1] == kSize && strides[2] == kSize) {
    add_strided<BFloat16>(data, kDense<BFloat16>, count, alpha);
  } else {
    add_strided<BFloat16>(data, strides, count, alpha);
  }
}

VECTORIZED void add(Half* /*dtype*/, char** data, const int64_t* strides, int64_t count, float alpha) {
  add_strided<Half>(data, strides, count, alpha);
}

VECTORIZED void scale(BFloat16* /*dtype*/, char** data, const int64_t* strides, int64_t count, float scale,
                      float offset) {
  constexpr int64_t kSize = sizeof(BFloat16);
  if (strides[0] == kSize && strides[1] == kSize) {
    scale_strided<BFloat16>(data, kDense<BFloat16>, count, scale, offset);
  } else {
    scale_strided<BFloat16>(data, strides, count, scale, offset);
  }
}

VECTORIZED void scale(Half* /*dtype*/, char** data, const int64_t* strides, int64_t count, float scale, float offset) {
  scale_strided<Half>(data, strides, count, scale, offset);
}

template <typename Loop>
bool run(at::TensorIteratorBase& iter, Loop loop) {
  iter.for_each([loop](char** data, const int64_t* strides, int64_t count) { loop(data, strides, count); });
  return true;
}

// output = offset + factor * the operand that is left
template <typename T>
bool scale_in_float(at::TensorIteratorBase& iter, float factor, float offset) {
  return run(iter, [=](char** data, const int64_t* strides, int64_t count) {
    scale(static_cast<T*>(nullptr), data, strides, count, factor, offset);
  });
}

float take_number(at::TensorIteratorBase& iter, int operand) {
  const auto number = iter.original_scalar_value<float>(operand);
  iter.remove_operand(operand);
  return number;
}

template <typename T>
bool add_in_float(at::TensorIteratorBase& iter, float alpha) {
  if (iter.is_cpu_scalar(2)) return scale_in_float<T>(iter, 1, alpha * take_number(iter, 2));
  if (iter.is_cpu_scalar(1)) return scale_in_float<T>(iter, alpha, take_number(iter, 1));
  if (alpha == 1) return false;
  return run(iter, [=](char** data, const int64_t* strides, int64_t count) {
    add(static_cast<T*>(nullptr), data, strides, count, alpha);
  });
}

// ATen's loop knows a number in the second place, and Tensor::mul_(Scalar) puts it in the first.
template <typename T>
bool multiply_in_float(at::TensorIteratorBase& iter) {
  constexpr float kNoOffset = -0.0F;  // adding 0 would change the sign of -0
  return !iter.is_scalar(2) && iter.is_cpu_scalar(1) && scale_in_float<T>(iter, take_number(iter, 1), kNoOffset);
}

// Of integers, without the overflow that is undefined: the least one wraps to itself.
template <typename T>
T wrapping_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <typename T>
T quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return wrapping_product(a, b);
  }
  return static_cast<T>(a / b);
}
template <typename T>
T magnitude(T a) {
  return a < 0 ? wrapping_product(a, static_cast<T>(-1)) : a;
}

}  // namespace

void add_loop(at::TensorIteratorBase& iter, const c10::Scalar& alpha) {
  const auto dtype = iter.dtype(0);
  if (dtype == at::kBFloat16 && add_in_float<BFloat16>(iter, alpha.to<float>())) return;
  if (dtype == at::kHalf && add_in_float<Half>(iter, alpha.to<float>())) return;
  at::native::add_stub(c10::kCPU, iter, alpha);
}

void mul_loop(at::TensorIteratorBase& iter) {
  const auto dtype = iter.dtype(0);
  if (dtype == at::kBFloat16 && multiply_in_float<BFloat16>(iter)) return;
  if (dtype == at::kHalf && multiply_in_float<Half>(iter)) return;
  at::native::mul_stub(c10::kCPU, iter);
}

void div_trunc_loop(at::TensorIteratorBase& iter) {
  if (!at::isIntegralType(iter.common_dtype(), /*includeBool=*/false))
    return at::native::div_trunc_stub(c10::kCPU, iter);
  AT_DISPATCH_INTEGRAL_TYPES(iter.common_dtype(), "div_trunc_cpu", [&] {
    at::native::cpu_kernel(iter, [](scalar_t a, scalar_t b) -> scalar_t {
      TORCH_CHECK(b != 0, "ZeroDivisionError");
      return quotient(a, b);
    });
  });
}

void lcm_loop(at::TensorIteratorBase& iter) {
  AT_DISPATCH_INTEGRAL_TYPES(iter.common_dtype(), "lcm_cpu", [&] {
    at::native::cpu_kernel(iter, [](scalar_t a, scalar_t b) -> scalar_t {
      using Wide = decltype(a * b);  // in which ATen multiplies, too
      const scalar_t divisor = calc_gcd(a, b);
      if (divisor == 0) return 0;
      return static_cast<scalar_t>(magnitude(wrapping_product<Wide>(quotient<Wide>(a, divisor), b)));
    });
  });
}

void arange_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& /*steps*/,
                 const c10::Scalar& step) {
  at::native::arange_stub(c10::kCPU, iter, start, iter.numel(), step);
}

void linspace_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& end, int64_t /*steps*/) {
  at::native::linspace_stub(c10::kCPU, iter, start, end, iter.numel());
}

}  // namespace torch_mtia
