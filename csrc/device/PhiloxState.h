// Where a random draw starts: see Note [Philox words] in csrc/aten/Philox.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace torch_mtia {

struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;  // a multiple of 4
};

// The states of the generators that a graph draws from. A launch of the graph sets them.
using PhiloxStates = std::vector<PhiloxState>;

// What a work item keeps of a draw, and asks when it runs: the state itself, or where in the draws of a graph it is. So
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

}  // namespace torch_mtia
