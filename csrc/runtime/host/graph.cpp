#include "graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "driver.h"
#include "error.h"

namespace torch_mtia::runtime::host {

// Nodes ---------------------------------------------------------------------------------------------------------------

namespace {

constexpr size_t kSmallestChunk = size_t{4} << 10;
constexpr size_t kLargestChunk = size_t{256} << 10;

constexpr size_t align(size_t size) {
  return (size + 15) / 16 * 16;
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

bool Graph::is_valid() const {
  for (uint32_t index = 0; index < size(); ++index) {
    const auto before = dependencies(node(index));
    if (std::adjacent_find(before.begin(), before.end(), std::greater_equal()) != before.end()) return false;
    if (!before.empty() && before.back() >= index) return false;
  }
  return true;
}

void Graph::run_node(uint32_t index, Stream& stream, int32_t num_threads,
                     std::span<const uint64_t> trace_ids) const noexcept {
  const Node& node = nodes_[index];
  stream.run_node(node.work, *this, node.stream->device().index(), threads_for(node.work, num_threads),
                  trace_ids.empty() ? 0 : trace_ids[index]);
}

// Captures ------------------------------------------------------------------------------------------------------------

namespace {

uint64_t next_id() {
  static constinit std::atomic<uint64_t> last{0};
  return ++last;
}

std::string describe(const Stream& stream) {
  return "stream " + std::to_string(stream.index()) + " of device " + std::to_string(stream.device().index());
}

}  // namespace

Capture::Capture(Stream& origin) : id_(next_id()), origin_(origin), tails_{{&origin, {}}} {}

void Capture::begin(Stream& origin) {
  std::shared_ptr<Capture> capture(new Capture(origin));
  const std::lock_guard lock(capture->mutex_);
  if (origin.begin_capture(capture) != capture) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_begin_capture: " + describe(origin) + " is being captured already");
  }
}

std::shared_ptr<Graph> Capture::end(Stream& origin) {
  const std::shared_ptr<Capture> capture = origin.capture();
  std::unique_lock<std::mutex> lock;
  if (capture != nullptr) lock = std::unique_lock(capture->mutex_);
  // It may have ended since the stream was asked.
  if (capture == nullptr || &capture->origin_ != &origin || capture->graph_ == nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_end_capture: no capture began with " + describe(origin));
  }
  for (const auto& [stream, tail] : capture->tails_) stream->end_capture();
  capture->tails_.clear();
  capture->graph_->seal();
  MTIA_ASSERT(capture->graph_->is_valid());
  return std::exchange(capture->graph_, nullptr);
}

mtia_status Capture::record(Stream& stream, const mtia_work& work) {
  if ((work.flags & MTIA_WORK_CAPTURABLE) == 0) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                  std::string(work.name != nullptr ? work.name : "the work") + " cannot be captured in a graph");
  }
  const std::lock_guard lock(mutex_);
  const auto found = tails_.find(&stream);
  if (found == tails_.end()) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "the capture of " + describe(stream) + " ended while work was submitted");
  }
  const uint32_t node = graph_->add(work, stream, found->second);
  found->second.assign(1, node);
  return MTIA_SUCCESS;
}

Tail Capture::tail(Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = tails_.find(&stream);
  return found == tails_.end() ? Tail{} : found->second;
}

void Capture::join(Stream& stream, const Tail& tail) {
  const std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "stream_wait_event: the event was last recorded in a capture that has ended; record it again");
  }
  const bool is_new = tails_.try_emplace(&stream).second;
  if (stream.begin_capture(shared_from_this()).get() != this) {
    if (is_new) tails_.erase(&stream);
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "stream_wait_event: " + describe(stream) + " and the event are parts of different captures");
  }
  Tail& own = tails_[&stream];
  Tail both;
  std::set_union(own.begin(), own.end(), tail.begin(), tail.end(), std::back_inserter(both));
  // A node of the stream itself comes after all earlier ones, so one of them is enough.
  uint32_t latest = 0;
  bool has_own = false;
  for (const uint32_t node : both) {
    if (graph_->node(node).stream == &stream) {
      latest = node;
      has_own = true;
    }
  }
  own.clear();
  for (const uint32_t node : both) {
    if (!has_own || graph_->node(node).stream != &stream || node == latest) own.push_back(node);
  }
}

// Replays -------------------------------------------------------------------------------------------------------------

// A run of nodes in which each depends on just the one before it. Either all of them may block or none.
struct Chain {
  std::vector<uint32_t> nodes;
  std::vector<uint32_t> successors;  // chains
  uint32_t num_predecessors = 0;     // chains
  uint64_t cost = 0;
  bool blocks = false;
};

namespace {

uint64_t cost_of(const Graph::Node& node) noexcept {
  return add_costs(node.work.cost, kNodeCostNs);
}

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

// Note [Threads of a replay]
// The thread that runs the launch and helpers of the graph's own take ordinary chains as they become ready. Chains of
// work that blocks run on threads of their own, one for each captured stream that has such work: the nodes of a stream
// are in order, so no more of these chains are ready at a time. So a blocked chain holds back only what depends on it.
// All threads start before the first launch and sleep between launches: a replay that has begun needs nothing that
// could be refused.
//
// Shared by the executable graph and its threads. The graph outlives the last run.
class ParallelReplay : public std::enable_shared_from_this<ParallelReplay> {
 public:
  // Null: nothing is gained, or the graph is too small.
  static std::shared_ptr<ParallelReplay> create(const Graph& graph);

  // Throws std::system_error without the threads that work which blocks needs. To be called before each run, by one
  // thread at a time.
  void start_threads();
  void stop_threads() noexcept;

  // All nodes. One run at a time.
  void run(Stream& stream, int32_t num_threads, std::span<const uint64_t> trace_ids) noexcept;

 private:
  enum Kind : size_t { kOrdinary, kBlocking, kNumKinds };
  static Kind kind_of(const Chain& chain) { return chain.blocks ? kBlocking : kOrdinary; }

  ParallelReplay(const Graph& graph, std::vector<Chain> chains, std::array<size_t, kNumKinds> num_threads);
  void help(Kind kind) noexcept;
  // With `mutex_`; what is given the lock gives it up while nodes run.
  void run_next(Kind kind, int32_t num_threads, std::unique_lock<std::mutex>& lock) noexcept;
  void make_ready(uint32_t index, Kind by) noexcept;

  const Graph& graph_;
  const std::vector<Chain> chains_;
  const std::array<size_t, kNumKinds> num_threads_;  // beside the one that runs the launch

  std::mutex mutex_;
  std::array<std::condition_variable, kNumKinds> changed_;
  std::array<size_t, kNumKinds> num_started_{};
  bool is_over_ = false;
  // Of the run under way.
  Stream* stream_ = nullptr;
  std::span<const uint64_t> trace_ids_;
  std::vector<uint32_t> missing_;                       // predecessors of each chain that are not done
  std::array<std::vector<uint32_t>, kNumKinds> ready_;  // have room for all
  size_t unfinished_ = 0;
};

std::shared_ptr<ParallelReplay> ParallelReplay::create(const Graph& graph) {
  std::vector<Chain> chains = make_chains(graph, /*by_kind=*/false);
  size_t num_blocking = 0;
  if (may_hold_back(chains)) {
    chains = make_chains(graph, /*by_kind=*/true);
    num_blocking = count_blocking_streams(graph, chains);
  } else {
    for (Chain& chain : chains) chain.blocks = false;  // every other chain is ordered before or after it
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
  MTIA_ASSERT(unfinished_ == 0 && ready_[kOrdinary].empty() && ready_[kBlocking].empty());
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

void ParallelReplay::run_next(Kind kind, int32_t num_threads, std::unique_lock<std::mutex>& lock) noexcept {
  const Chain& chain = chains_[ready_[kind].back()];
  ready_[kind].pop_back();
  Stream& stream = *stream_;
  const std::span<const uint64_t> trace_ids = trace_ids_;
  lock.unlock();
  for (const uint32_t index : chain.nodes) graph_.run_node(index, stream, num_threads, trace_ids);
  lock.lock();
  for (const uint32_t successor : chain.successors) {
    MTIA_ASSERT(missing_[successor] > 0);
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

GraphExec::GraphExec(std::shared_ptr<Graph> graph)
    : graph_(std::move(graph)), parallel_(ParallelReplay::create(*graph_)) {
  for (uint32_t index = 0; index < graph_->size(); ++index) {
    const mtia_work& work = graph_->node(index).work;
    cost_ = add_costs(cost_, cost_of(graph_->node(index)));
    num_threads_ = std::max(num_threads_, work.num_threads);
    may_run_inline_ = may_run_inline_ && (work.flags & MTIA_WORK_MAY_RUN_INLINE) != 0;
  }
  may_run_inline_ = may_run_inline_ && cost_ <= kInlineCostNs && parallel_ == nullptr;
}

GraphExec::~GraphExec() {
  if (parallel_ != nullptr) parallel_->stop_threads();
}

// Tells the tracer, if there is one, of the nodes.
std::vector<uint64_t> GraphExec::announce(const Stream& stream) const {
  std::vector<uint64_t> trace_ids;
  const mtia_tracer* tracer = current_tracer.load(std::memory_order_acquire);
  if (tracer == nullptr) return trace_ids;
  trace_ids.reserve(graph_->size());
  for (uint32_t index = 0; index < graph_->size(); ++index) {
    trace_ids.push_back(tracer->submitting(stream.tag(), &graph_->node(index).work));
    if (trace_ids.back() != 0) tracer->submitted(trace_ids.back());
  }
  return trace_ids;
}

mtia_status GraphExec::launch(Stream& stream, const mtia_graph_parameters* parameters) {
  const bool is_inside = Stream::is_inside(*graph_);
  if (is_inside && stream.runs_on_this_thread()) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "graph_launch: a node of a graph cannot launch the same graph in the stream that it runs in; launch "
                  "it behind the graph, or in another stream");
  }
  if (parallel_ != nullptr) {
    const std::lock_guard lock(mutex_);
    parallel_->start_threads();
  }
  std::vector<std::byte> values;
  if (parameters != nullptr) {
    const auto* from = static_cast<const std::byte*>(parameters->from);
    values.assign(from, from + parameters->size);
  }
  // The launch itself may destroy the handle.
  auto run = [self = shared_from_this(), &stream, trace_ids = announce(stream),
              to = parameters != nullptr ? parameters->to : nullptr,
              values = std::move(values)](const mtia_work_context& context) noexcept {
    if (!values.empty()) std::memcpy(to, values.data(), values.size());
    if (self->parallel_ != nullptr) return self->parallel_->run(stream, context.num_threads, trace_ids);
    const Graph& graph = *self->graph_;
    for (uint32_t index = 0; index < graph.size(); ++index) {
      graph.run_node(index, stream, context.num_threads, trace_ids);
    }
  };
  constexpr const char* kName = "mtia::graph_launch";
  // The calling thread does not wait for launches in other streams.
  if (may_run_inline_ && !is_inside) {
    const std::unique_lock turn(graph_->turn(), std::try_to_lock);
    OwnWork work{[&run](const mtia_work_context& context) noexcept { run(context); }};
    if (turn.owns_lock() && stream.run_if_idle(work.describe(kName, MTIA_WORK_MAY_RUN_INLINE, cost_, num_threads_))) {
      return MTIA_SUCCESS;
    }
  }
  OwnWork work{[run = std::move(run), graph = graph_](const mtia_work_context& context) noexcept {
    const std::lock_guard turn(graph->turn());
    run(context);
  }};
  const mtia_status status = stream.launch_graph(work.describe(kName, 0, cost_, num_threads_));
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
