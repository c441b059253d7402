// What the ranks' elements become. Sums of floating point of 16 bits are made in 32 and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace torch_mtia::collectives {

enum class ElementType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
};

size_t size_of(ElementType type);
const char* name_of(ElementType type);

// kAverage is for floating point, those on bits are for integers. kMin and kMax of a NaN and anything are NaN.
enum class Operation : uint8_t { kSum, kAverage, kProduct, kMin, kMax, kAnd, kOr, kXor };

const char* name_of(Operation operation);  // of any number

// What a rank gives to a reduction.
struct Contribution {
  const std::byte* elements;
  double factor = 1;  // of each of them; other than 1 only in sums of floating point
};

// Raises std::invalid_argument where the operation is not defined for the type, or has no factors.
void check_defined(ElementType type, Operation operation, double factor);

// Combines the contributions in their order, by an operation that is defined. `result` may be one of them. An average
// is the sum by the number of contributions, or by `divisor`.
void reduce(ElementType type, Operation operation, std::span<const Contribution> contributions, std::byte* result,
            size_t num_elements, size_t divisor = 0);

// Elements as they are added: those of floating point of 16 bits as float32. Others are copied.
ElementType widened(ElementType type);
void widen(ElementType type, const std::byte* elements, std::byte* wide, size_t num_elements);
void narrow(ElementType type, const std::byte* wide, std::byte* elements, size_t num_elements);

}  // namespace torch_mtia::collectives
