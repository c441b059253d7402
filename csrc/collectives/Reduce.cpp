#include "Reduce.h"

#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../processor/attributes.h"
#include "../processor/floats16.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia::collectives {
namespace {

// In which type elements are combined. Unsigned integers wrap, and the bits of a sum or product are the same for signed
// ones.
template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Float16> {
  using type = float;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};

template <typename T>
INLINED T widened(T value) {
  return value;
}

template <typename T>
INLINED void narrow(T value, T& result) {
  result = value;
}

struct Sum {
  template <typename A>
  INLINED static A apply(A left, A right) {
    if constexpr (std::is_integral_v<A>) {
      using Unsigned = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
    } else {
      return left + right;
    }
  }
};

struct Product {
  template <typename A>
  INLINED static A apply(A left, A right) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(left) * static_cast<uint64_t>(right));
    } else {
      return left * right;
    }
  }
};

struct Min {
  template <typename A>
  INLINED static A apply(A left, A right) {
    return right < left || right != right ? right : left;
  }
};

struct Max {
  template <typename A>
  INLINED static A apply(A left, A right) {
    return right > left || right != right ? right : left;
  }
};

struct And {
  template <typename A>
  INLINED static A apply(A left, A right) {
    return left & right;
  }
};

struct Or {
  template <typename A>
  INLINED static A apply(A left, A right) {
    return left | right;
  }
};

struct Xor {
  template <typename A>
  INLINED static A apply(A left, A right) {
    return left ^ right;
  }
};

// A block stays in the first cache while the ranks are added to it, and its constant size is what lets the compiler use
// vectors.
constexpr size_t kBlock = 1024;

struct Task {
  Operation operation;
  std::span<const Contribution> contributions;
  std::byte* result;
  size_t num_elements;
  bool has_factors;
  size_t divisor;  // of averages
};

template <typename T>
INLINED const T* elements_of(const Contribution& contribution) {
  return reinterpret_cast<const T*>(contribution.elements);
}

template <typename T, typename Operator>
INLINED void reduce_block(const Task& task, size_t first, size_t count) {
  using A = typename Accumulator<T>::type;
  A block[kBlock];
  const T* const start = elements_of<T>(task.contributions[0]) + first;
  for (size_t i = 0; i < count; ++i) block[i] = widened(start[i]);
  if constexpr (std::is_floating_point_v<A> && std::is_same_v<Operator, Sum>) {
    if (task.has_factors) {
      for (size_t i = 0; i < count; ++i) block[i] *= static_cast<A>(task.contributions[0].factor);
      for (const Contribution& contribution : task.contributions.subspan(1)) {
        const T* const elements = elements_of<T>(contribution) + first;
        const auto factor = static_cast<A>(contribution.factor);
        for (size_t i = 0; i < count; ++i) block[i] += widened(elements[i]) * factor;
      }
      T* const result = reinterpret_cast<T*>(task.result) + first;
      for (size_t i = 0; i < count; ++i) narrow(block[i], result[i]);
      return;
    }
  }
  for (const Contribution& contribution : task.contributions.subspan(1)) {
    const T* const elements = elements_of<T>(contribution) + first;
    for (size_t i = 0; i < count; ++i) block[i] = Operator::apply(block[i], static_cast<A>(widened(elements[i])));
  }
  if constexpr (std::is_floating_point_v<A> && std::is_same_v<Operator, Sum>) {
    if (task.operation == Operation::kAverage) {
      const auto divisor = static_cast<A>(task.divisor);
      for (size_t i = 0; i < count; ++i) block[i] /= divisor;
    }
  }
  T* const result = reinterpret_cast<T*>(task.result) + first;
  for (size_t i = 0; i < count; ++i) narrow(block[i], result[i]);
}

template <typename T, typename Operator>
INLINED void reduce_blocks(const Task& task) {
  size_t first = 0;
  for (; first + kBlock <= task.num_elements; first += kBlock) reduce_block<T, Operator>(task, first, kBlock);
  reduce_block<T, Operator>(task, first, task.num_elements - first);
}

template <typename T>
INLINED void reduce_elements(const Task& task) {
  switch (task.operation) {
    case Operation::kSum:
    case Operation::kAverage:
      return reduce_blocks<T, Sum>(task);
    case Operation::kProduct:
      return reduce_blocks<T, Product>(task);
    case Operation::kMin:
      return reduce_blocks<T, Min>(task);
    case Operation::kMax:
      return reduce_blocks<T, Max>(task);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (task.operation) {
      case Operation::kAnd:
        return reduce_blocks<T, And>(task);
      case Operation::kOr:
        return reduce_blocks<T, Or>(task);
      default:
        return reduce_blocks<T, Xor>(task);
    }
  }
}

// In the order of ElementType.
#define ELEMENT_TYPES(_)  \
  _(double, "float64")    \
  _(float, "float32")     \
  _(Float16, "float16")   \
  _(BFloat16, "bfloat16") \
  _(int64_t, "int64")     \
  _(int32_t, "int32")     \
  _(int16_t, "int16")     \
  _(int8_t, "int8")       \
  _(uint64_t, "uint64")   \
  _(uint32_t, "uint32")   \
  _(uint16_t, "uint16")   \
  _(uint8_t, "uint8")

#define REDUCTION(T, name)                                      \
  VECTORIZED void reduce_typed(T* /*type*/, const Task& task) { \
    reduce_elements<T>(task);                                   \
  }
ELEMENT_TYPES(REDUCTION)
#undef REDUCTION

struct TypeInfo {
  const char* name;
  size_t size;
  bool is_floating_point;
  void (*reduce)(const Task&);
};

#define TYPE_INFO(T, name) \
  {name, sizeof(T), !std::is_integral_v<T>, [](const Task& task) { reduce_typed(static_cast<T*>(nullptr), task); }},
constexpr TypeInfo kTypes[] = {ELEMENT_TYPES(TYPE_INFO)};
#undef TYPE_INFO

template <typename T>
void widen_as(const std::byte* from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i)
    reinterpret_cast<float*>(to)[i] = torch_mtia::widened(reinterpret_cast<const T*>(from)[i]);
}

template <typename T>
void narrow_as(const std::byte* from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i)
    torch_mtia::narrow(reinterpret_cast<const float*>(from)[i], reinterpret_cast<T*>(to)[i]);
}

const TypeInfo& info_of(ElementType type) {
  return kTypes[static_cast<size_t>(type)];
}

}  // namespace

size_t size_of(ElementType type) {
  return info_of(type).size;
}

const char* name_of(ElementType type) {
  return info_of(type).name;
}

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"};
  const auto number = static_cast<size_t>(operation);
  return number < std::size(kNames) ? kNames[number] : "an unknown operation";
}

void check_defined(ElementType type, Operation operation, double factor) {
  if (operation > Operation::kXor) {
    throw std::invalid_argument("expected an operation below " + std::to_string(static_cast<int>(Operation::kXor) + 1) +
                                ", got " + std::to_string(static_cast<int>(operation)));
  }
  const bool has_factor = factor != 1;
  const bool is_defined = info_of(type).is_floating_point
                              ? operation < Operation::kAnd && (!has_factor || operation == Operation::kSum)
                              : operation != Operation::kAverage && !has_factor;
  if (is_defined) return;
  throw std::invalid_argument(std::string(name_of(operation)) + (has_factor ? " with a factor" : "") +
                              " is not defined for " + name_of(type));
}

void reduce(ElementType type, Operation operation, std::span<const Contribution> contributions, std::byte* result,
            size_t num_elements, size_t divisor) {
  bool has_factors = false;
  for (const Contribution& contribution : contributions) has_factors |= contribution.factor != 1;
  info_of(type).reduce(
      {operation, contributions, result, num_elements, has_factors, divisor == 0 ? contributions.size() : divisor});
}

ElementType widened(ElementType type) {
  return type == ElementType::kFloat16 || type == ElementType::kBFloat16 ? ElementType::kFloat32 : type;
}

void widen(ElementType type, const std::byte* elements, std::byte* wide, size_t num_elements) {
  if (type == ElementType::kFloat16) return widen_as<Float16>(elements, wide, num_elements);
  if (type == ElementType::kBFloat16) return widen_as<BFloat16>(elements, wide, num_elements);
  std::memmove(wide, elements, num_elements * size_of(type));
}

void narrow(ElementType type, const std::byte* wide, std::byte* elements, size_t num_elements) {
  if (type == ElementType::kFloat16) return narrow_as<Float16>(wide, elements, num_elements);
  if (type == ElementType::kBFloat16) return narrow_as<BFloat16>(wide, elements, num_elements);
  std::memmove(elements, wide, num_elements * size_of(type));
}

}  // namespace torch_mtia::collectives
