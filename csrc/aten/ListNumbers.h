// Tells a sink the numbers that a work item is given: whoever looks for the first NaN has to know that a program fills
// with it on purpose.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstdint>
#include <optional>

#include "../core/Operands.h"

namespace torch_mtia {

template <typename T>
void list_numbers(const T& /*value*/, core::OperandSink& /*sink*/) {}

template <std::floating_point T>
void list_numbers(const T& value, core::OperandSink& sink) {
  sink.add_host({reinterpret_cast<uint64_t>(&value),
                 sizeof(T),
                 {},
                 {},
                 1,
                 /*writes=*/false,
                 core::OldBytes::kRead,
                 sizeof(T) == sizeof(double) ? "float64" : "float32"});
}

inline void list_numbers(const c10::Scalar& value, core::OperandSink& sink) {
  if (!value.isFloatingPoint() && !value.isComplex()) return;
  const auto number = value.toComplexDouble();
  list_numbers(number.real(), sink);
  list_numbers(number.imag(), sink);
}

template <typename T>
void list_numbers(const std::optional<T>& value, core::OperandSink& sink) {
  if (value) list_numbers(*value, sink);
}

template <typename T>
void list_numbers(const c10::ArrayRef<T>& values, core::OperandSink& sink) {
  for (const T& value : values) list_numbers(value, sink);
}

inline void list_numbers(const c10::OptionalRef<const c10::Scalar>& value, core::OperandSink& sink) {
  if (value.has_value()) list_numbers(value.get(), sink);
}

}  // namespace torch_mtia
