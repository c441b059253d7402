// Work items in program order: the log, kernels that have yet to run, and captured graphs. No PyTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/Hooks.h"
#include "../runtime/forks.h"
#include "AccessRecorder.h"
#include "Detector.h"

namespace torch_mtia::sanitizer {

// Watches the launches of one kernel, each of which is part of an item.
class Watcher final : public core::KernelWatcher {
 public:
  using Receive = std::function<void(AccessRecorder::Launch launch)>;

  // `checks_bounds`: lanes stop that leave the live range that their argument points into.
  Watcher(const mtia_kernel_launch& launch, bool checks_bounds, bool watches_numbers);

  // Called with the accesses of the next launch for which there is no call of expect() yet.
  void expect(Receive receive);
  void finished() noexcept override;

 private:
  static uint64_t access(const mtia_kernel_watch* watch, const mtia_kernel_context* context, const mtia_site* site,
                         int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                         const uint64_t* addresses, uint64_t lanes, const void* values);

  AccessRecorder recorder_;
  std::mutex mutex_;
  std::deque<Receive> expected_;
};

// A work item, or a node of a graph. The operands of a kernel, and the findings within it, are known when it has run.
struct Node {
  Item item;
  std::shared_ptr<Watcher> kernel = nullptr;
  std::vector<Finding> found = {};
  std::shared_ptr<const uint64_t> num_blocks = nullptr;  // of a graph: see Operand::captured
};

// Applies entries to the detector in program order. What a kernel accesses is known when it has run; until then, later
// entries wait in the log. Thread safe; entries are applied one at a time and must not call back.
class Log {
 public:
  using Apply = std::function<void(std::vector<Node> nodes)>;

  template <typename Body>
  void add(Body apply) {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) [[likely]]
      return apply();
    entries_.push_back(std::make_shared<Entry>(Entry{[apply = std::move(apply)](const auto&) mutable { apply(); }}));
  }
  // Applied when all kernels among the nodes have run. The item of a kernel without instrumentation is not listed then.
  void add(std::vector<Node> nodes, Apply apply);

  // Calls body() while no entry is applied.
  template <typename Body>
  auto locked(Body body) {
    const std::lock_guard lock(mutex_);
    return body();
  }

  // BLOCKS until everything is applied, but no longer than `at_most`: a device that is lost runs no kernels.
  void wait(std::chrono::seconds at_most);

  // Drops all entries.
  void clear();

  // For a log that lives as long as the process.
  void hold_at_forks(runtime::ForkOrder order) { runtime::hold_at_forks(order, mutex_); }
  // In a forked child, which holds the mutex: the kernels that entries wait for do not run here, nor do the threads
  // that wait for entries. The entries are leaked: to destroy them might take other locks that are held.
  void abandon() noexcept;

 private:
  struct Entry {
    Apply apply;
    std::vector<Node> nodes = {};
    size_t missing = 0;  // kernels, and add() itself
  };

  void arrive(Entry& entry);  // with the mutex

  std::mutex mutex_;
  std::condition_variable all_applied_;
  std::deque<std::shared_ptr<Entry>> entries_;
  std::deque<std::shared_ptr<Entry>> abandoned_;
};

// Note [Order in graphs]
// A replay is one item of its stream, with the operands of all nodes. The order of the nodes is known from the capture
// alone, and is the same in every replay; the operands of kernels are known when they have run. So the steps of the
// capture are recorded and applied to a detector of their own: when the capture ends, without the operands of kernels,
// and after each replay of a graph that has kernels. Memory allocated in a capture stays in use for all other work, but
// is free for later nodes.
//
// Thread safe: several threads may use the streams of a capture.
class Capture {
 public:
  // An operation on events or memory in the capture.
  using Step = std::function<void(Detector& order)>;

  void add(Node node);
  void add(Step step);
  void end() { is_under_way_ = false; }
  bool is_under_way() const { return is_under_way_; }

  std::vector<Node> nodes() const;
  // What is wrong among the nodes, with their operands in a replay; takes their `found`. `order` is a new detector.
  // Findings of order are reported once for a graph, those within a kernel for each replay.
  std::vector<Finding> check(std::vector<Node>& nodes, Detector& order);

 private:
  std::atomic<bool> is_under_way_{true};
  mutable std::mutex mutex_;
  std::vector<Node> nodes_;
  std::vector<std::pair<size_t, Step>> steps_;                   // with the number of nodes before
  std::set<std::tuple<FindingKind, uint64_t, uint64_t>> known_;  // findings, by their items' numbers
};

// A replay as one item, with the operands of the nodes.
Item merge(Item replay, const std::vector<Node>& nodes);

}  // namespace torch_mtia::sanitizer
