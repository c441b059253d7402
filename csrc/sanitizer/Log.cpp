#include "Log.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>

namespace torch_mtia::sanitizer {

void Log::add(std::vector<Node> nodes, Apply apply) {
  const auto entry = std::make_shared<Entry>(Entry{std::move(apply), std::move(nodes), 1});
  std::vector<std::shared_ptr<Watcher>> kernels;
  for (const Node& each : entry->nodes) {
    kernels.push_back(each.kernel);
    entry->missing += each.kernel != nullptr ? 1 : 0;
  }
  locked([&] { entries_.push_back(entry); });
  for (size_t index = 0; index < kernels.size(); ++index) {
    if (kernels[index] == nullptr) continue;
    kernels[index]->expect([this, entry, index](AccessRecorder::Launch launch) {
      const std::lock_guard lock(mutex_);
      Node& node = entry->nodes[index];
      node.item.operands = std::move(launch.operands);
      node.item.is_listed = launch.was_followed;
      node.found = std::move(launch.findings);
      arrive(*entry);
    });
  }
  locked([&] { arrive(*entry); });
}

void Log::arrive(Entry& entry) {
  --entry.missing;
  while (!entries_.empty() && entries_.front()->missing == 0) {
    const std::shared_ptr<Entry> first = std::move(entries_.front());
    entries_.pop_front();
    first->apply(std::move(first->nodes));
  }
  if (entries_.empty()) all_applied_.notify_all();
}

void Log::wait(std::chrono::seconds at_most) {
  std::unique_lock lock(mutex_);
  all_applied_.wait_for(lock, at_most, [&] { return entries_.empty(); });
}

void Log::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  all_applied_.notify_all();
}

void Log::abandon() noexcept {
  entries_.swap(abandoned_);
  std::construct_at(&all_applied_);
}

Watcher::Watcher(const mtia_kernel_launch& launch, bool checks_bounds, bool watches_numbers)
    : KernelWatcher({&access}),
      recorder_(checks_bounds
                    ? std::optional(std::vector(launch.live_ranges, launch.live_ranges + launch.num_live_ranges))
                    : std::nullopt,
                std::vector(static_cast<const std::byte*>(launch.packed_arguments),
                            static_cast<const std::byte*>(launch.packed_arguments) + launch.packed_arguments_size)) {
  if (watches_numbers) recorder_.watch_numbers();
}

// No lock: one thread runs all programs of a launch, and launches of one kernel do not overlap.
uint64_t Watcher::access(const mtia_kernel_watch* watch, const mtia_kernel_context* context, const mtia_site* site,
                         int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                         const uint64_t* addresses, uint64_t lanes, const void* values) {
  auto& self = *static_cast<Watcher*>(const_cast<mtia_kernel_watch*>(watch));
  return self.recorder_.access(*context, site, {program_x, program_y, program_z}, address, stride, addresses, lanes,
                               values);
}

void Watcher::expect(Receive receive) {
  const std::lock_guard lock(mutex_);
  expected_.push_back(std::move(receive));
}

void Watcher::finished() noexcept {
  AccessRecorder::Launch launch;
  try {
    launch = recorder_.take();
  } catch (...) {
    launch = {};  // the host is out of memory: not listed
  }
  Receive receive;
  {
    const std::lock_guard lock(mutex_);
    if (expected_.empty()) return;  // launched before the start
    receive = std::move(expected_.front());
    expected_.pop_front();
  }
  try {
    receive(std::move(launch));
  } catch (...) {
    // The same: the item of the launch is never checked.
  }
}

void Capture::add(Node node) {
  const std::lock_guard lock(mutex_);
  nodes_.push_back(std::move(node));
}

void Capture::add(Step step) {
  const std::lock_guard lock(mutex_);
  steps_.emplace_back(nodes_.size(), std::move(step));
}

std::vector<Node> Capture::nodes() const {
  const std::lock_guard lock(mutex_);
  return nodes_;
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

Item merge(Item replay, const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    replay.is_listed = replay.is_listed && node.item.is_listed;
    for (const Operand& each : node.item.operands) {
      Operand& operand = replay.operands.emplace_back(each);
      // An address that a kernel loads from memory may differ between replays.
      const bool is_fixed = node.kernel == nullptr || (each.line != nullptr && !each.line->argument.empty());
      if (is_fixed) operand.captured = node.num_blocks;
    }
  }
  return replay;
}

}  // namespace torch_mtia::sanitizer
