#include "Graph.h"

#include <algorithm>
#include <utility>

#include "../runtime/forks.h"
#include "Driver.h"
#include "Hooks.h"
#include "Stream.h"
#include "Waits.h"

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

constinit std::atomic<uint64_t> Graph::ended{0};
constinit std::atomic<Graph::Executable*> Graph::late{nullptr};

Graph::~Graph() {
  destroy();
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->destroys(*this);
}

bool Graph::is_supported() {
  return driver_info().can(MTIA_CAPABILITY_GRAPHS);
}

bool Graph::any_capture() {
  return captures().count.load(std::memory_order_relaxed) != 0;
}

void Graph::begin_capture(Stream& stream) {
  destroy_late();
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->captures(*this);
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
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->has_captured(*this);
  Captures& all = captures();
  {
    const std::lock_guard lock(all.mutex);
    ++ended;
    std::erase(all.graphs, this);
    all.count = all.graphs.size();
  }
  struct Leave {  // whatever fails
    Graph& graph;
    ~Leave() {
      std::vector<Stream*> streams;
      {
        const std::lock_guard lock(graph.mutex_);
        streams.swap(graph.streams_);
        for (Stream* stream : streams) stream->set_graph(nullptr);
      }
      for (Stream* stream : streams) graph.stream_left(*stream);
    }
  } const leave{*this};
  const mtia_status status = runtime::driver().stream_end_capture(origin.handle(), &graph_);
  if (status != MTIA_SUCCESS) throw runtime::last_error(status, &mtia_runtime_api::stream_end_capture);
}

std::vector<Stream*> Graph::captured_streams() const {
  const std::lock_guard lock(mutex_);
  return streams_;
}

void Graph::invalidate(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (invalid_reason_.empty()) invalid_reason_ = reason;
}

void Graph::invalidate_capture(uint64_t capture_id, const std::string& reason) {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  for (Graph* graph : all.graphs) {
    if (graph->capture_id_ == capture_id) graph->invalidate(reason);
  }
}

void Graph::with_capture_of(const Stream& stream, const std::function<void(Graph&)>& use) {
  Captures& all = captures();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find(all.graphs.begin(), all.graphs.end(), stream.graph());
  if (found != all.graphs.end()) use(**found);
}

std::string Graph::invalid_reason() const {
  const std::lock_guard lock(mutex_);
  return invalid_reason_;
}

void Graph::instantiate() {
  auto executable = std::make_unique<Executable>();
  runtime::call(&mtia_runtime_api::graph_instantiate, graph_, &executable->handle);
  std::swap(executable, executable_);
  destroy(std::move(executable));
}

// Fails only in a forked child, where nothing is left to free.
Graph::Executable::~Executable() {
  if (handle == nullptr) return;
  const BlockingWait wait(/*takes_time=*/false);  // for launches under way
  runtime::driver().graph_exec_destroy(handle);
}

void Graph::destroy(std::unique_ptr<Executable> executable) noexcept {
  if (executable == nullptr || !RunningWork::on_this_thread()) return;  // ends here
  Executable* left = executable.release();
  left->next = late.load(std::memory_order_relaxed);
  while (!late.compare_exchange_weak(left->next, left, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

bool Graph::destroy_late() noexcept {
  if (late.load(std::memory_order_relaxed) == nullptr || RunningWork::on_this_thread()) return false;
  Executable* first = late.exchange(nullptr, std::memory_order_acquire);
  const bool was_any = first != nullptr;
  while (first != nullptr) {
    const std::unique_ptr<Executable> executable(first);
    first = executable->next;
  }
  return was_any;
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
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->launches(*this, stream);
  stream.launch_graph(executable_ != nullptr ? executable_->handle : nullptr, parameters);
}

void Graph::destroy(std::shared_ptr<const void> memory) noexcept {
  if (runtime::is_forked()) return;  // see Note [Forks] in runtime/forks.h
  if (is_capturing()) {
    try {
      end_capture();
    } catch (...) {
      // No caller can receive the error. The streams are released either way.
    }
  }
  if (executable_ != nullptr) executable_->memory = std::move(memory);
  destroy(std::move(executable_));
  forget_nodes();
  {
    const std::lock_guard lock(mutex_);
    invalid_reason_.clear();
  }
  destroy_late();
}

}  // namespace torch_mtia::core
