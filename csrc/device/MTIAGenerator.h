// The random number generator of an mtia device: a counter-based (Philox) stream. The counterpart of
// ATen/cuda/CUDAGeneratorImpl.h.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <utility>

namespace torch_mtia {

// The state is (seed, offset): every draw takes a piece of the counter's range and moves the offset behind it, so a
// draw depends on nothing but the two, and not on the number of threads.
struct MTIAGeneratorImpl final : public c10::GeneratorImpl {
  explicit MTIAGeneratorImpl(c10::DeviceIndex device);

  static c10::DeviceType device_type() { return c10::DeviceType::MTIA; }

  void set_current_seed(uint64_t seed) override;  // and sets the offset to 0
  void set_offset(uint64_t offset) override;      // raises ValueError unless a multiple of 4
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;  // a new, non-deterministic seed

  // The layout of CUDA's: a CPU byte tensor of seed and offset, 8 bytes each; set_state also takes the first 8 alone.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Reserves `increment` numbers, rounded up to a multiple of 4: (seed, offset of the first). The caller holds mutex_.
  std::pair<uint64_t, uint64_t> reserve(uint64_t increment);

  c10::intrusive_ptr<MTIAGeneratorImpl> clone() const;

 private:
  MTIAGeneratorImpl* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// The default generator of a device; the reference stays valid until the process ends. Does not initialize the device.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace torch_mtia
