// Runs a CPU kernel on float32 copies of its 16-bit operands: rows with `in_float32` in yaml/native_functions.yaml.
//
// Note [Float32 accumulation]
// 16-bit numbers are accumulated in float32 and the result is rounded once. Many of ATen's CPU kernels accumulate in
// the dtype of their operands instead: 8,192 ones add up to 256 in bfloat16. Such a kernel gets float32 copies of its
// 16-bit operands and outputs, made in the work item. Kernels of our own serve where the copies would be too large or
// too slow, or where the CPU's kernel for float32 is not deterministic: sum_rows (ScatteredSums.cpp) and
// layer_norm_backward. A call that falls back gets the same copies (Fallback.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "OwnedArguments.h"

namespace torch_mtia {

// What stands in for one argument of a kernel: the argument itself, unless it is about 16-bit numbers.
template <typename T>
struct WideArgument {
  const T& argument;
  const T& get() const { return argument; }
  void round() const {}
};

template <>
struct WideArgument<at::Tensor> {
  explicit WideArgument(const at::Tensor& tensor)
      : given(tensor), copy(is_16_bit(tensor) ? tensor.to(at::kFloat) : at::Tensor()) {}
  static bool is_16_bit(const at::Tensor& tensor) {
    return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type());
  }
  const at::Tensor& get() const { return copy.defined() ? copy : given; }
  void round() const {}

  const at::Tensor& given;
  at::Tensor copy;
};

// An argument that the kernel writes. Its old values are copied too: an operator in place reads them.
struct WideOutput : WideArgument<at::Tensor> {
  using WideArgument::WideArgument;
  at::Tensor& get() { return const_cast<at::Tensor&>(WideArgument::get()); }
  void round() const {
    if (copy.defined()) given.copy_(copy);
  }
};

template <>
struct WideArgument<OwnedOptionalTensor::Reference> {
  explicit WideArgument(const OwnedOptionalTensor::Reference& argument) : tensor(argument.tensor) {}
  OwnedOptionalTensor::Reference get() const { return {tensor.get()}; }
  void round() const {}

  WideArgument<at::Tensor> tensor;
};

// The dtype of the result.
template <>
struct WideArgument<std::optional<at::ScalarType>> {
  explicit WideArgument(const std::optional<at::ScalarType>& given)
      : dtype(given && at::isReducedFloatingType(*given) ? at::kFloat : given) {}
  const std::optional<at::ScalarType>& get() const { return dtype; }
  void round() const {}

  std::optional<at::ScalarType> dtype;
};

inline WideOutput widen(at::Tensor& output) {
  return WideOutput(output);
}
template <typename T>
WideArgument<T> widen(const T& argument) {
  return WideArgument<T>{argument};
}

template <typename Run>
struct InFloat32 {
  Run run;
  bool is_trial = false;  // asks the kernel about the operands as they are: see Note [Dtypes]

  // Results that the kernel makes are rounded by the copy to the outputs.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) const {
    using Result = decltype(run(arguments...));
    constexpr bool makes_results = !std::is_reference_v<Result> && !std::is_void_v<Result> && !is_references<Result>;
    if (is_trial) {
      if constexpr (makes_results) {
        return run(arguments...);
      } else {
        (void)run(arguments...);
        return;
      }
    }
    std::tuple wide{widen(arguments)...};
    return std::apply(
        [&](auto&... argument) {
          if constexpr (makes_results) {
            return run(argument.get()...);
          } else {
            (void)run(argument.get()...);
            (argument.round(), ...);
          }
        },
        wide);
  }

 private:
  template <typename T>
  struct IsReferences : std::false_type {};
  template <typename First, typename... Rest>
  struct IsReferences<std::tuple<First&, Rest...>> : std::true_type {};
  template <typename Result>
  static constexpr bool is_references = IsReferences<Result>::value;
};

template <typename Run>
constexpr InFloat32<Run> in_float32(Run run) {
  return {std::move(run)};
}

}  // namespace torch_mtia
