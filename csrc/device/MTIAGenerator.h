// The random number generator of an mtia device: a counter-based (Philox) stream. The counterpart of
// ATen/cuda/CUDAGeneratorImpl.h.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "DeviceType.h"

namespace torch_mtia {

// Where a random draw starts: see Note [Philox words] in csrc/aten/Philox.h.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;  // a multiple of 4
};

// The states of the generators that a graph draws from. A launch of the graph sets them.
using PhiloxStates = std::vector<PhiloxState>;

// Where a draw of a work item starts, evaluated when the item runs: a state, or an offset into the draws of a graph. So
// each replay of the graph draws other numbers.
class PhiloxSource {
 public:
  PhiloxSource(const PhiloxState& state = {}) : state_(state) {}
  PhiloxSource(std::shared_ptr<const PhiloxStates> graph, size_t generator, uint64_t offset)
      : state_{0, offset}, graph_(std::move(graph)), generator_(generator) {}

  PhiloxState get() const {
    if (graph_ == nullptr) return state_;
    const PhiloxState& first = (*graph_)[generator_];
    return {first.seed, first.offset + state_.offset};
  }

 private:
  PhiloxState state_;
  std::shared_ptr<const PhiloxStates> graph_;
  size_t generator_ = 0;
};

// The state is (seed, offset). Every draw takes a range of the counter and moves the offset past it, so a draw depends
// on the state alone, and not on the number of threads.
//
// While the current stream of the device is captured in a graph, the state can be neither read nor set: what is drawn
// there is known only at a replay. RuntimeError says so.
struct MTIAGeneratorImpl final : public c10::GeneratorImpl {
  explicit MTIAGeneratorImpl(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);

  static c10::DeviceType device_type() { return torch_mtia::device_type(); }

  void set_current_seed(uint64_t seed) override;  // and sets the offset to 0
  void set_offset(uint64_t offset) override;      // raises ValueError unless a multiple of 4
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;  // a new, non-deterministic seed

  // The layout of CUDA's: a CPU byte tensor of seed and offset, 8 bytes each; set_state also takes the first 8 alone.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // What a draw of so many words moves the offset by: a Philox round yields four.
  static uint64_t round_up(uint64_t words) { return (words + 3) / 4 * 4; }

  // The state at which a draw of so many words starts; the next one starts after it. The caller holds mutex_.
  PhiloxState reserve(uint64_t words);

  c10::intrusive_ptr<MTIAGeneratorImpl> clone() const;

 private:
  MTIAGeneratorImpl* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

// The same for any mtia generator, under its mutex.
PhiloxState reserve(const at::Generator& generator, uint64_t words);

// A generator with the default seed, of the current device for a negative index.
at::Generator new_generator(c10::DeviceIndex device);

// The default generator of a device; the reference stays valid until the process ends. Does not initialize the device.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace torch_mtia
