#include "Graph.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "../runtime/forks.h"
#include "BlockingWait.h"
#include "DriverInfo.h"
#include "Observer.h"
#include "Stream.h"

namespace torch_mtia::core {
namespace {

// The graphs whose capture is under way. Leaked: streams ask until the process ends.
struct Captures {
  std::mutex mutex;
  std::vector<Graph*> graphs;
  std::atomic<size_t> count{0};
};
Captures& captures() {
  static Captures& instance = *std::make_unique<Captures>().release();
  return instance;
}

}  // namespace

Graph::~Graph() {
  destroy();
  if (Observer* told = current_observer()) [[unlikely]]
    told->destroys(*this);
}

bool Graph::is_supported() {
  return driver_info().can(MTIA_CAPABILITY_GRAPHS);
}

bool Graph::any_capture() {
  return captures().count.load(std::memory_order_relaxed) != 0;
}

void Graph::begin_capture(Stream& stream) {
  if (Observer* told = current_observer()) [[unlikely]]
    told->captures(*this);
  runtime::call(&mtia_runtime_api::stream_begin_capture, stream.handle());
  origin_ = &stream;
  try {
    runtime::call(&mtia_runtime_api::stream_capture_id, stream.handle(), &capture_id_);
    Captures& all = captures();
    {
      const std::lock_guard lock(all.mutex);
      all.graphs.push_back(this);
      all.count = all.graphs.size();
    }
    add_stream(stream);
  } catch (...) {
    destroy();
    throw;
  }
}

void Graph::add_stream(Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    streams_.push_back(&stream);
    stream.set_graph(this);
  }
  stream_joined(stream);
}

void Graph::notice_join(Stream& stream) {
  Captures& all = captures();
  if (!any_capture() || stream.graph() != nullptr) return;
  uint64_t id = 0;
  runtime::call(&mtia_runtime_api::stream_capture_id, stream.handle(), &id);
  if (id == 0) return;
  // Held until the stream has joined: it would not be released by a capture that ends meanwhile.
  const std::lock_guard lock(all.mutex);
  const auto found =
      std::find_if(all.graphs.begin(), all.graphs.end(), [id](const Graph* one) { return one->capture_id_ == id; });
  if (found != all.graphs.end()) (*found)->add_stream(stream);
}

void Graph::end_capture() {
  Stream& origin = *std::exchange(origin_, nullptr);
  if (Observer* told = current_observer()) [[unlikely]]
    told->has_captured(*this);
  Captures& all = captures();
  {
    const std::lock_guard lock(all.mutex);
    std::erase(all.graphs, this);
    all.count = all.graphs.size();
  }
  const mtia_status status = runtime::driver().stream_end_capture(origin.handle(), &graph_);
  const auto failure = runtime::last_error(status, &mtia_runtime_api::stream_end_capture);
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(mutex_);
    streams.swap(streams_);
    for (Stream* stream : streams) stream->set_graph(nullptr);
  }
  for (Stream* stream : streams) stream_left(*stream);
  if (status != MTIA_SUCCESS) throw failure;
}

std::vector<Stream*> Graph::captured_streams() const {
  const std::lock_guard lock(mutex_);
  return streams_;
}

void Graph::invalidate(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (invalid_reason_.empty()) invalid_reason_ = reason;
}

std::string Graph::invalid_reason() const {
  const std::lock_guard lock(mutex_);
  return invalid_reason_;
}

void Graph::instantiate() {
  mtia_graph_exec exec = nullptr;
  runtime::call(&mtia_runtime_api::graph_instantiate, graph_, &exec);
  destroy_executable();
  exec_ = exec;
}

void Graph::destroy_executable() noexcept {
  if (exec_ == nullptr) return;
  const BlockingWait wait(/*takes_time=*/false);  // for launches under way
  runtime::driver().graph_exec_destroy(std::exchange(exec_, nullptr));
}

void Graph::forget_nodes() noexcept {
  if (graph_ != nullptr) runtime::driver().graph_destroy(std::exchange(graph_, nullptr));
}

std::vector<GraphNode> Graph::nodes() const {
  uint32_t count = 0;
  runtime::call(&mtia_runtime_api::graph_num_nodes, graph_, &count);
  std::vector<GraphNode> nodes;
  nodes.reserve(count);
  for (uint32_t index = 0; index < count; ++index) {
    mtia_graph_node node{};
    node.struct_size = sizeof(node);
    runtime::call(&mtia_runtime_api::graph_node, graph_, index, &node);
    nodes.push_back({node.name != nullptr ? node.name : "work",
                     static_cast<const Stream*>(node.stream_tag),
                     node.cost,
                     {node.dependencies, node.dependencies + node.num_dependencies}});
  }
  return nodes;
}

void Graph::launch(Stream& stream, const mtia_graph_parameters* parameters) {
  if (Observer* told = current_observer()) [[unlikely]]
    told->launches(*this, stream);
  stream.launch_graph(exec_, parameters);
}

void Graph::destroy() noexcept {
  if (runtime::is_forked()) return;  // see Note [Forks] in runtime/forks.h
  if (is_capturing()) {
    try {
      end_capture();
    } catch (const runtime::DriverError&) {
      // A forked child: its parent's streams are not here.
    }
  }
  // Both fail only in a forked child, where nothing is left to free.
  destroy_executable();
  forget_nodes();
  const std::lock_guard lock(mutex_);
  invalid_reason_.clear();
}

}  // namespace torch_mtia::core
