#include "graph.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <utility>

#include "cost.h"
#include "device.h"
#include "properties.h"
#include "tracer.h"
#include "work.h"

namespace torch_mtia::runtime::host {
namespace {

constexpr size_t kSmallestChunk = size_t{4} << 10;
constexpr size_t kLargestChunk = size_t{256} << 10;

constexpr size_t align(size_t size) {
  return (size + 15) / 16 * 16;
}

uint64_t add_or_max(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max() : a + b;
}

uint64_t cost_of(const Graph::Node& node) {
  return add_or_max(node.work.cost, kNodeCostNs);
}

}  // namespace

void* Arena::allocate(size_t size) {
  size = align(size);
  if (size > num_free_) {
    const size_t usual = std::min(kSmallestChunk << std::min<size_t>(chunks_.size(), 6), kLargestChunk);
    const size_t chunk_size = std::max(size, usual);
    static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16);
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(chunk_size));
    free_ = chunks_.back().get();
    num_free_ = chunk_size;
  }
  num_free_ -= size;
  return std::exchange(free_, free_ + size);
}

Graph::~Graph() {
  for (const Node& node : nodes_) {
    if (node.work.destroy != nullptr) node.work.destroy(node.work.args);
  }
}

uint32_t Graph::add(const mtia_work& work, Stream& stream, std::span<const uint32_t> dependencies) {
  // What can throw comes first: a block that was moved must not be lost.
  void* block = arena_.allocate(work.args_size);
  const auto first = static_cast<uint32_t>(dependencies_.size());
  dependencies_.insert(dependencies_.end(), dependencies.begin(), dependencies.end());
  nodes_.push_back({work, &stream, first, static_cast<uint32_t>(dependencies.size())});
  move_arguments(block, work);
  nodes_.back().work.args = block;
  return size() - 1;
}

void Graph::seal() {
  nodes_.shrink_to_fit();
  dependencies_.shrink_to_fit();
}

// One launch while it runs. Helpers keep it: one that comes too late finds nothing to do.
class GraphExec::Replay : public std::enable_shared_from_this<Replay> {
 public:
  Replay(const GraphExec& exec, Stream& stream, std::vector<uint64_t> trace_ids)
      : graph_(*exec.graph_),
        chains_(exec.chains_),
        stream_(stream),
        trace_ids_(std::move(trace_ids)),
        unfinished_(chains_.size()) {
    if (exec.helpers_.empty()) return;
    ready_.reserve(chains_.size());
    missing_.reserve(chains_.size());
    for (uint32_t index = 0; index < chains_.size(); ++index) {
      missing_.push_back(chains_[index].num_predecessors);
      if (missing_.back() == 0) ready_.push_back(index);
    }
  }

  void run_in_order(int32_t num_threads) noexcept {
    for (uint32_t index = 0; index < graph_.size(); ++index) run_node(index, num_threads);
  }

  // Helpers that are inside a chain are waited for; none touches the graph after that.
  void run_in_parallel(std::span<Stream* const> helpers, int32_t num_threads) noexcept {
    for (Stream* helper : helpers) call(*helper);
    run_chains(num_threads);
  }

 private:
  void call(Stream& helper) noexcept {
    OwnWork help{[self = shared_from_this()](const mtia_work_context&) noexcept { self->run_chains(1); }};
    try {
      helper.enqueue_untraced(help.describe("mtia::graph_branch", 0, 0, 1));
    } catch (...) {
      // The host has no thread or no memory for it: the others do its share.
    }
  }

  void run_chains(int32_t num_threads) noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !ready_.empty() || unfinished_ == 0; });
      if (unfinished_ == 0) return;
      const Chain& chain = chains_[ready_.back()];
      ready_.pop_back();
      lock.unlock();
      for (const uint32_t index : chain.nodes) run_node(index, num_threads);
      lock.lock();
      bool is_worth_waking = false;
      for (const uint32_t successor : chain.successors) {
        if (--missing_[successor] != 0) continue;
        ready_.push_back(successor);
        is_worth_waking = is_worth_waking || chains_[successor].cost > kInlineCostNs;
      }
      // This thread takes one of those that are ready, and goes on until there are none.
      if (--unfinished_ == 0 || (is_worth_waking && ready_.size() > 1)) changed_.notify_all();
    }
  }

  void run_node(uint32_t index, int32_t num_threads) noexcept {
    const Graph::Node& node = graph_.node(index);
    const int32_t granted = threads_for(node.work, num_threads);
    stream_.run_node(node.work, node.stream->device().index(), granted, trace_ids_.empty() ? 0 : trace_ids_[index]);
  }

  Graph& graph_;
  const std::vector<Chain>& chains_;
  Stream& stream_;
  const std::vector<uint64_t> trace_ids_;  // of each node; empty: nobody traces

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> missing_;  // predecessors of each chain that are not done
  std::vector<uint32_t> ready_;
  size_t unfinished_;
};

GraphExec::GraphExec(std::shared_ptr<Graph> graph) : graph_(std::move(graph)) {
  for (uint32_t index = 0; index < graph_->size(); ++index) {
    const mtia_work& work = graph_->node(index).work;
    cost_ = add_or_max(cost_, cost_of(graph_->node(index)));
    num_threads_ = std::max(num_threads_, work.num_threads);
    may_run_inline_ = may_run_inline_ && (work.flags & MTIA_WORK_MAY_RUN_INLINE) != 0;
  }
  make_chains();
  choose_helpers();
}

GraphExec::~GraphExec() {
  for (Stream* helper : helpers_) helper->device().retire_stream(helper);
}

void GraphExec::make_chains() {
  const uint32_t size = graph_->size();
  std::vector<uint32_t> num_successors(size, 0);
  for (uint32_t index = 0; index < size; ++index) {
    for (const uint32_t dependency : graph_->dependencies(graph_->node(index))) ++num_successors[dependency];
  }
  std::vector<uint32_t> chain_of(size);
  for (uint32_t index = 0; index < size; ++index) {
    const Graph::Node& node = graph_->node(index);
    const auto dependencies = graph_->dependencies(node);
    const bool continues = dependencies.size() == 1 && num_successors[dependencies[0]] == 1;
    if (continues) {
      chain_of[index] = chain_of[dependencies[0]];
    } else {
      chain_of[index] = static_cast<uint32_t>(chains_.size());
      Chain& chain = chains_.emplace_back();
      chain.num_predecessors = static_cast<uint32_t>(dependencies.size());
      for (const uint32_t dependency : dependencies) {
        chains_[chain_of[dependency]].successors.push_back(chain_of[index]);
      }
    }
    chains_[chain_of[index]].nodes.push_back(index);
    uint64_t& cost = chains_[chain_of[index]].cost;
    cost = add_or_max(cost, cost_of(node));
  }
}

// As many as there can be chains worth a thread at the same time: by their distance from the start, which is what the
// chains of parallel branches usually have in common.
void GraphExec::choose_helpers() {
  std::vector<uint32_t> level(chains_.size(), 0);
  std::vector<size_t> width(chains_.size(), 0);
  size_t most = 0;
  for (uint32_t index = 0; index < chains_.size(); ++index) {  // predecessors come first
    const Chain& chain = chains_[index];
    for (const uint32_t successor : chain.successors) level[successor] = std::max(level[successor], level[index] + 1);
    if (chain.cost > kInlineCostNs) most = std::max(most, ++width[level[index]]);
  }
  const auto num_threads = std::min(most, static_cast<size_t>(available_cores()));
  if (num_threads < 2) return;
  Device& device = graph_->node(0).stream->device();
  for (size_t i = 1; i < num_threads; ++i) helpers_.push_back(device.create_stream(Device::kLowestPriority, nullptr));
}

mtia_status GraphExec::launch(Stream& stream, const mtia_graph_parameters* parameters) {
  std::vector<uint64_t> trace_ids;
  if (const mtia_tracer* tracer = current_tracer.load(std::memory_order_acquire)) {
    trace_ids.reserve(graph_->size());
    for (uint32_t index = 0; index < graph_->size(); ++index) {
      const Graph::Node& node = graph_->node(index);
      trace_ids.push_back(tracer->submitting(stream.tag(), &node.work));
      if (trace_ids.back() != 0) tracer->submitted(trace_ids.back());
    }
  }
  std::vector<std::byte> values;
  if (parameters != nullptr) {
    const auto* from = static_cast<const std::byte*>(parameters->from);
    values.assign(from, from + parameters->size);
  }
  const auto self = shared_from_this();  // the launch itself may destroy the handle
  OwnWork work{[self, replay = std::make_shared<Replay>(*this, stream, std::move(trace_ids)),
                to = parameters != nullptr ? parameters->to : nullptr,
                values = std::move(values)](const mtia_work_context& context) noexcept {
    const std::lock_guard turn(self->graph_->turn());
    if (!values.empty()) std::memcpy(to, values.data(), values.size());
    if (self->helpers_.empty()) return replay->run_in_order(context.num_threads);
    replay->run_in_parallel(self->helpers_, context.num_threads);
  }};
  const mtia_status status = stream.launch_graph(
      work.describe("mtia::graph_launch", may_run_inline_ ? MTIA_WORK_MAY_RUN_INLINE : 0, cost_, num_threads_));
  const std::lock_guard lock(mutex_);
  launches_[&stream] = stream.position();
  return status;
}

void GraphExec::wait_for_launches() {
  std::map<Stream*, Executor::Position> launches;
  {
    const std::lock_guard lock(mutex_);
    launches.swap(launches_);
  }
  for (const auto& [stream, position] : launches) stream->wait(position);
}

}  // namespace torch_mtia::runtime::host
