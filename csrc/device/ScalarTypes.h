// The dtypes that the device converts to and from each other. Others (quantized ones, bits, integers of less than a
// byte) can be stored and moved, no more.
#pragma once

#include <c10/core/ScalarType.h>

namespace torch_mtia {

// As PyTorch writes it, such as "float32".
inline const char* dtype_name(c10::ScalarType type) {
  return c10::getDtypeNames(type).first.data();  // of a literal
}

constexpr bool is_supported(c10::ScalarType type) {
  using enum c10::ScalarType;
  switch (type) {
    case Bool:
    case Byte:
    case Char:
    case Short:
    case Int:
    case Long:
    case UInt16:
    case UInt32:
    case UInt64:
    case Half:
    case BFloat16:
    case Float:
    case Double:
    case ComplexHalf:
    case ComplexFloat:
    case ComplexDouble:
    case Float8_e4m3fn:
    case Float8_e5m2:
    case Float8_e4m3fnuz:
    case Float8_e5m2fnuz:
    case Float8_e8m0fnu:
      return true;
    default:
      return false;
  }
}

}  // namespace torch_mtia
