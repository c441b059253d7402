// How long operators are estimated to take on one thread. Work item by work item, the driver decides by it what runs
// within the call and how many threads are worth waking (runtime/host/work.h), so an estimate has to be on the right
// side of that line, and no more. `python -m benchmarks.costs` measures these numbers on the machine at hand.
//
// What belongs to one operator stands with it: `weight` in yaml/native_functions.yaml, and DrawInfo in Random.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torch_mtia {

// Bytes that one core moves within its second-level cache, in single precision (an AMD EPYC of 2024 with AVX-512: 60).
// Larger operands are slower; for them the estimate only has to say that the work is large.
inline constexpr uint64_t kBytesPerNanosecond = 64;

inline uint64_t cost_of_bytes(uint64_t bytes) {
  return bytes / kBytesPerNanosecond;
}

// Multiplications and additions that one core does in a good product, convolution or attention.
inline constexpr uint64_t kOperationsPerNanosecond = 64;

inline uint64_t cost_of_operations(uint64_t operations) {
  return operations / kOperationsPerNanosecond;
}

// What a CPU kernel on lists spends on each tensor, however small it is, in nanoseconds.
inline constexpr uint64_t kNanosecondsPerTensor = 400;

inline uint64_t cost_of_list(at::TensorList list) {
  return list.size() * kNanosecondsPerTensor;
}

// Elements of all arguments together up to which an operator that falls back is small, whatever it does.
inline constexpr int64_t kSmallFallbackNumel = 16 * 1024;

}  // namespace torch_mtia
