// A captured graph: what its replays do, and in which order. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "Detector.h"
#include "KernelItem.h"

namespace torch_mtia::sanitizer {

// Note [Order in graphs]
// A replay is one item of its stream, which touches all that the graph's nodes do. In which order the nodes are is
// known from the capture alone, and the same in every replay. What a kernel touches is known when it has run. So the
// steps of the capture are kept, and done to a detector of their own: when the capture ends, without what kernels
// touch, and behind each replay of a graph that has some. Memory that is allocated in a capture stays in use for
// everybody else, but is free for later nodes.
//
// Thread safe: streams of a capture may be used by several.
class Capture {
 public:
  struct CapturedNode {
    Node node;
    std::shared_ptr<const uint64_t> num_blocks;  // see Operand::captured
  };
  // What the capture does beside nodes: to events and to memory.
  using Step = std::function<void(Detector& order)>;

  void add(CapturedNode node);
  void add(Step step);
  void end() { is_under_way_ = false; }
  bool is_under_way() const { return is_under_way_; }

  std::vector<Node> nodes() const;
  // What is wrong among the nodes, with what they touch in a replay. `order` knows nothing yet. What is in no order is
  // told once for a graph, and what a kernel does in each replay. Takes what was found in kernels.
  std::vector<Finding> check(std::vector<Node>& nodes, Detector& order);
  // The replay as an item, of the nodes' operands.
  Item complete(Item replay, const std::vector<Node>& nodes) const;

 private:
  std::atomic<bool> is_under_way_{true};
  mutable std::mutex mutex_;
  std::vector<CapturedNode> nodes_;
  std::vector<std::pair<size_t, Step>> steps_;                   // and how many nodes were before
  std::set<std::tuple<FindingKind, uint64_t, uint64_t>> known_;  // findings, by their items' numbers
};

}  // namespace torch_mtia::sanitizer
