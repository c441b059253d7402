#include "graph.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "device.h"
#include "error.h"
#include "replay.h"
#include "tracer.h"
#include "work.h"

namespace torch_mtia::runtime::host {
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

void Graph::run_node(uint32_t index, Stream& stream, int32_t num_threads,
                     std::span<const uint64_t> trace_ids) const noexcept {
  const Node& node = nodes_[index];
  stream.run_node(node.work, *this, node.stream->device().index(), threads_for(node.work, num_threads),
                  trace_ids.empty() ? 0 : trace_ids[index]);
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
