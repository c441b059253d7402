// What lets a CPU kernel without an argument for a generator draw the device's numbers.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "../device/MTIAGenerator.h"

namespace torch_mtia {

inline uint64_t mix(uint64_t seed, uint64_t offset) {  // splitmix64's finalizer
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (offset + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A seed for one draw of an mtia generator, which moves on behind it.
inline uint64_t draw_seed(const at::Generator& generator) {
  const auto [seed, offset] = reserve(generator, 1);
  return mix(seed, offset);
}

// The CPU's default generator, with another seed while this lives. Its mutex guards each step, and cannot be held in
// between: the kernel takes it to draw. What another thread draws on the CPU meanwhile is drawn of this seed.
class DefaultCPUSeedGuard {
 public:
  explicit DefaultCPUSeedGuard(uint64_t seed) : seed_(seed), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~DefaultCPUSeedGuard() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    if (generator_.current_seed() == seed_) generator_.set_state(state_);  // else somebody has seeded it meanwhile
  }
  DefaultCPUSeedGuard(const DefaultCPUSeedGuard&) = delete;
  DefaultCPUSeedGuard& operator=(const DefaultCPUSeedGuard&) = delete;

 private:
  const uint64_t seed_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace torch_mtia
