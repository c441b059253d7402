#include "Reduce.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../processor/floats16.h"
#include "../processor/vectorized.h"

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
      const auto num_ranks = static_cast<A>(task.contributions.size());
      for (size_t i = 0; i < count; ++i) block[i] /= num_ranks;
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

#define REDUCTION(T)                                            \
  VECTORIZED void reduce_typed(T* /*type*/, const Task& task) { \
    reduce_elements<T>(task);                                   \
  }
REDUCTION(double)
REDUCTION(float)
REDUCTION(Float16)
REDUCTION(BFloat16)
REDUCTION(int64_t)
REDUCTION(int32_t)
REDUCTION(int16_t)
REDUCTION(int8_t)
REDUCTION(uint64_t)
REDUCTION(uint32_t)
REDUCTION(uint16_t)
REDUCTION(uint8_t)
#undef REDUCTION

template <typename T>
void reduce_as(const Task& task) {
  reduce_typed(static_cast<T*>(nullptr), task);
}

struct TypeInfo {
  const char* name;
  size_t size;
  bool is_floating_point;
  void (*reduce)(const Task&);
};

// In the order of ElementType.
constexpr TypeInfo kTypes[] = {
    {"float64", 8, true, reduce_as<double>},   {"float32", 4, true, reduce_as<float>},
    {"float16", 2, true, reduce_as<Float16>},  {"bfloat16", 2, true, reduce_as<BFloat16>},
    {"int64", 8, false, reduce_as<int64_t>},   {"int32", 4, false, reduce_as<int32_t>},
    {"int16", 2, false, reduce_as<int16_t>},   {"int8", 1, false, reduce_as<int8_t>},
    {"uint64", 8, false, reduce_as<uint64_t>}, {"uint32", 4, false, reduce_as<uint32_t>},
    {"uint16", 2, false, reduce_as<uint16_t>}, {"uint8", 1, false, reduce_as<uint8_t>},
};

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
            size_t num_elements) {
  bool has_factors = false;
  for (const Contribution& contribution : contributions) has_factors |= contribution.factor != 1;
  info_of(type).reduce({operation, contributions, result, num_elements, has_factors});
}

}  // namespace torch_mtia::collectives
