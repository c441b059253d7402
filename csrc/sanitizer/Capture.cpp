#include "Capture.h"

#include <algorithm>
#include <iterator>

namespace torch_mtia::sanitizer {

void Capture::add(CapturedNode node) {
  const std::lock_guard lock(mutex_);
  nodes_.push_back(std::move(node));
}

void Capture::add(Step step) {
  const std::lock_guard lock(mutex_);
  steps_.emplace_back(nodes_.size(), std::move(step));
}

std::vector<Node> Capture::nodes() const {
  const std::lock_guard lock(mutex_);
  std::vector<Node> nodes;
  nodes.reserve(nodes_.size());
  for (const CapturedNode& each : nodes_) nodes.push_back(each.node);
  return nodes;
}

std::vector<Finding> Capture::check(std::vector<Node>& nodes, Detector& order) {
  std::vector<Finding> findings;
  const std::lock_guard lock(mutex_);
  auto step = steps_.begin();
  for (size_t index = 0; index < nodes.size(); ++index) {
    for (; step != steps_.end() && step->first <= index; ++step) step->second(order);
    std::vector<Finding> found = order.submit(nodes[index].item, std::move(nodes[index].found));
    std::move(found.begin(), found.end(), std::back_inserter(findings));
  }
  std::erase_if(findings, [&](const Finding& each) {
    const uint64_t earlier = each.earlier != nullptr ? each.earlier->number : 0;
    return each.kernel == nullptr && !known_.insert({each.kind, each.item->number, earlier}).second;
  });
  return findings;
}

Item Capture::complete(Item replay, const std::vector<Node>& nodes) const {
  const std::lock_guard lock(mutex_);
  for (size_t index = 0; index < nodes.size(); ++index) {
    replay.is_listed = replay.is_listed && nodes[index].item.is_listed;
    for (const Operand& each : nodes[index].item.operands) {
      Operand& operand = replay.operands.emplace_back(each);
      // An address that a kernel has from memory may be a new one in each replay.
      const bool is_fixed = nodes[index].kernel == nullptr || (each.line != nullptr && !each.line->argument.empty());
      if (is_fixed) operand.captured = nodes_[index].num_blocks;
    }
  }
  return replay;
}

}  // namespace torch_mtia::sanitizer
