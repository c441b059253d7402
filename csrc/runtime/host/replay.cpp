#include "replay.h"

#include <algorithm>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "cost.h"
#include "device.h"
#include "properties.h"
#include "thread.h"

namespace torch_mtia::runtime::host {
namespace {

bool blocks(const Graph::Node& node) {
  return (node.work.flags & MTIA_WORK_BLOCKS) != 0;
}

// `by_kind`: chains of work that blocks consist of nothing else.
std::vector<Chain> make_chains(const Graph& graph, bool by_kind) {
  const uint32_t size = graph.size();
  std::vector<uint32_t> num_successors(size, 0);
  for (uint32_t index = 0; index < size; ++index) {
    for (const uint32_t dependency : graph.dependencies(graph.node(index))) ++num_successors[dependency];
  }
  std::vector<Chain> chains;
  std::vector<uint32_t> chain_of(size);
  for (uint32_t index = 0; index < size; ++index) {
    const Graph::Node& node = graph.node(index);
    const auto dependencies = graph.dependencies(node);
    const bool continues = dependencies.size() == 1 && num_successors[dependencies[0]] == 1 &&
                           (!by_kind || blocks(node) == blocks(graph.node(dependencies[0])));
    if (continues) {
      chain_of[index] = chain_of[dependencies[0]];
    } else {
      chain_of[index] = static_cast<uint32_t>(chains.size());
      Chain& chain = chains.emplace_back();
      chain.num_predecessors = static_cast<uint32_t>(dependencies.size());
      for (const uint32_t dependency : dependencies) {
        chains[chain_of[dependency]].successors.push_back(chain_of[index]);
      }
    }
    Chain& chain = chains[chain_of[index]];
    chain.nodes.push_back(index);
    chain.cost = add_costs(chain.cost, cost_of(node));
    chain.blocks = chain.blocks || blocks(node);
  }
  return chains;
}

// How many chains depend on `chain`, directly or not; `next` lists those that do directly.
size_t count_reachable(const std::vector<std::vector<uint32_t>>& next, uint32_t chain) {
  std::vector<bool> seen(next.size(), false);
  std::vector<uint32_t> stack{chain};
  size_t count = 0;
  while (!stack.empty()) {
    const uint32_t at = stack.back();
    stack.pop_back();
    for (const uint32_t each : next[at]) {
      if (seen[each]) continue;
      seen[each] = true;
      ++count;
      stack.push_back(each);
    }
  }
  return count;
}

// Whether there is a chain that could run while one that may block waits: neither depends on the other.
bool may_hold_back(const std::vector<Chain>& chains) {
  std::vector<std::vector<uint32_t>> successors(chains.size());
  std::vector<std::vector<uint32_t>> predecessors(chains.size());
  for (uint32_t index = 0; index < chains.size(); ++index) {
    successors[index] = chains[index].successors;
    for (const uint32_t successor : chains[index].successors) predecessors[successor].push_back(index);
  }
  for (uint32_t index = 0; index < chains.size(); ++index) {
    if (!chains[index].blocks) continue;
    if (count_reachable(successors, index) + count_reachable(predecessors, index) + 1 < chains.size()) return true;
  }
  return false;
}

// As many as there can be ordinary chains worth a thread at the same time: by their distance from the start, which is
// what the chains of parallel branches usually have in common.
size_t count_parallel(const std::vector<Chain>& chains) {
  std::vector<uint32_t> level(chains.size(), 0);
  std::vector<size_t> width(chains.size(), 0);
  size_t most = 0;
  for (uint32_t index = 0; index < chains.size(); ++index) {  // predecessors come first
    const Chain& chain = chains[index];
    for (const uint32_t successor : chain.successors) level[successor] = std::max(level[successor], level[index] + 1);
    if (!chain.blocks && chain.cost > kInlineCostNs) most = std::max(most, ++width[level[index]]);
  }
  return std::min(most, static_cast<size_t>(available_cores()));
}

size_t count_blocking_streams(const Graph& graph, const std::vector<Chain>& chains) {
  std::set<const Stream*> streams;
  for (const Chain& chain : chains) {
    if (chain.blocks) streams.insert(graph.node(chain.nodes.front()).stream);
  }
  return streams.size();
}

}  // namespace

std::shared_ptr<ParallelReplay> ParallelReplay::create(const Graph& graph) {
  std::vector<Chain> chains = make_chains(graph, /*by_kind=*/false);
  size_t num_blocking = 0;
  if (may_hold_back(chains)) {
    chains = make_chains(graph, /*by_kind=*/true);
    num_blocking = count_blocking_streams(graph, chains);
  } else {
    for (Chain& chain : chains) chain.blocks = false;  // whatever runs beside it is behind it or before it
  }
  const size_t num_parallel = count_parallel(chains);
  if (num_parallel < 2 && num_blocking == 0) return nullptr;
  const size_t num_helpers = num_parallel > 1 ? num_parallel - 1 : 0;
  return std::shared_ptr<ParallelReplay>(new ParallelReplay(graph, std::move(chains), {num_helpers, num_blocking}));
}

ParallelReplay::ParallelReplay(const Graph& graph, std::vector<Chain> chains, std::array<size_t, kNumKinds> num_threads)
    : graph_(graph), chains_(std::move(chains)), num_threads_(num_threads), missing_(chains_.size()) {
  for (auto& ready : ready_) ready.reserve(chains_.size());
}

// Helpers are there for speed only.
void ParallelReplay::start_threads() {
  const std::string name = "mtia:" + std::to_string(graph_.node(0).stream->device().index()) + "/graph";
  for (const Kind kind : {kBlocking, kOrdinary}) {
    try {
      while (num_started_[kind] < num_threads_[kind]) {
        start_thread(name, [self = shared_from_this(), kind] { self->help(kind); });
        ++num_started_[kind];
      }
    } catch (const std::system_error&) {
      if (kind == kBlocking) throw;
    }
  }
}

void ParallelReplay::stop_threads() noexcept {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  for (auto& changed : changed_) changed.notify_all();
}

void ParallelReplay::run(Stream& stream, int32_t num_threads, std::span<const uint64_t> trace_ids) noexcept {
  std::unique_lock lock(mutex_);
  stream_ = &stream;
  trace_ids_ = trace_ids;
  unfinished_ = chains_.size();
  for (uint32_t index = 0; index < chains_.size(); ++index) {
    missing_[index] = chains_[index].num_predecessors;
    if (missing_[index] == 0) make_ready(index, kOrdinary);
  }
  for (;;) {
    changed_[kOrdinary].wait(lock, [this] { return !ready_[kOrdinary].empty() || unfinished_ == 0; });
    if (unfinished_ == 0) return;
    run_next(kOrdinary, num_threads, lock);
  }
}

void ParallelReplay::help(Kind kind) noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_[kind].wait(lock, [&] { return !ready_[kind].empty() || is_over_; });
    if (ready_[kind].empty()) return;
    run_next(kind, /*num_threads=*/1, lock);
  }
}

// The lock is given up meanwhile.
void ParallelReplay::run_next(Kind kind, int32_t num_threads, std::unique_lock<std::mutex>& lock) noexcept {
  const Chain& chain = chains_[ready_[kind].back()];
  ready_[kind].pop_back();
  Stream& stream = *stream_;
  const std::span<const uint64_t> trace_ids = trace_ids_;
  lock.unlock();
  for (const uint32_t index : chain.nodes) graph_.run_node(index, stream, num_threads, trace_ids);
  lock.lock();
  for (const uint32_t successor : chain.successors) {
    if (--missing_[successor] == 0) make_ready(successor, kind);
  }
  if (--unfinished_ == 0) changed_[kOrdinary].notify_all();
}

// The thread that makes it ready, of kind `by`, takes one of its own kind itself, and goes on until there are none.
void ParallelReplay::make_ready(uint32_t index, Kind by) noexcept {
  const Chain& chain = chains_[index];
  const Kind kind = kind_of(chain);
  ready_[kind].push_back(index);
  const bool is_worth_waking = chain.blocks || chain.cost > kInlineCostNs;
  if (kind != by || (is_worth_waking && ready_[kind].size() > 1)) changed_[kind].notify_one();
}

}  // namespace torch_mtia::runtime::host
