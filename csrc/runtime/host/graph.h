// Graphs: the recording of work of streams, the nodes that come of it, and what is made of them to run them.
//
// Note [Replay]
// A launch of a graph is one work item of its stream. At instantiation the nodes are cut into chains: runs of nodes in
// which each depends on just the one before it. Usually all nodes run back to back on the thread that runs the item, in
// the order of capture. Chains run in parallel where two that are worth a thread can run at the same time, or where a
// chain does not depend on work that may block.
//
// The argument blocks of the nodes are shared by everything instantiated from the graph, and some change when they run.
// So launches exclude each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "../mtia_runtime.h"
#include "stream.h"
#include "work.h"

namespace torch_mtia::runtime::host {

// Memory for objects that live and die together.
class Arena {
 public:
  void* allocate(size_t size);  // aligned to 16

 private:
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::byte* free_ = nullptr;
  size_t num_free_ = 0;
};

// Grows while it is captured; does not change afterwards.
class Graph {
 public:
  struct Node {
    mtia_work work;  // with the argument block in the graph's memory
    Stream* stream;  // in which it was captured
    uint32_t first_dependency;
    uint32_t num_dependencies;
  };

  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Moves the work in. `dependencies` are indices of earlier nodes. Returns the index of the new one.
  uint32_t add(const mtia_work& work, Stream& stream, std::span<const uint32_t> dependencies);
  // Nothing more is added.
  void seal();
  // Whether each node depends on earlier ones, in ascending order: as replays rely on.
  bool is_valid() const;

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  const Node& node(uint32_t index) const { return nodes_[index]; }
  std::span<const uint32_t> dependencies(const Node& node) const {
    return {dependencies_.data() + node.first_dependency, node.num_dependencies};
  }

  // Runs a node as part of a launch in `stream`. `trace_ids`: the tracer's, of all nodes; empty: nobody traces.
  void run_node(uint32_t index, Stream& stream, int32_t num_threads,
                std::span<const uint64_t> trace_ids) const noexcept;

  // Held by a launch while it runs.
  std::mutex& turn() { return turn_; }

 private:
  Arena arena_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> dependencies_;
  std::mutex turn_;
};

// The nodes that what comes next in a stream depends on, ascending.
using Tail = std::vector<uint32_t>;

// The recording of work of streams: see Note [Capture] in mtia_runtime.h. Thread safe. Streams and events that were
// part of it keep it; the graph leaves it when it ends.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  // Throws Failure: INVALID_VALUE if the stream is captured already.
  static void begin(Stream& origin);
  // Throws Failure: INVALID_VALUE if no capture began with this stream.
  static std::shared_ptr<Graph> end(Stream& origin);

  uint64_t id() const { return id_; }

  // Throws Failure: NOT_SUPPORTED for work that is not capturable.
  mtia_status record(Stream& stream, const mtia_work& work);

  Tail tail(Stream& stream);
  // What comes next in the stream depends on `tail` too. The stream joins. Throws Failure: INVALID_VALUE if the
  // capture has ended or the stream is part of another one.
  void join(Stream& stream, const Tail& tail);

 private:
  explicit Capture(Stream& origin);

  const uint64_t id_;
  Stream& origin_;
  std::mutex mutex_;                                          // taken before the lock of a stream
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();  // null: it has ended
  std::unordered_map<Stream*, Tail> tails_;                   // of the streams that are part of it
};

class ParallelReplay;

// See Note [Replay]. Shared by the handle and the launches under way.
class GraphExec : public std::enable_shared_from_this<GraphExec> {
 public:
  explicit GraphExec(std::shared_ptr<Graph> graph);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  // Returns as Stream::launch does. Throws Failure: INVALID_VALUE inside a node of the graph that runs in the stream.
  mtia_status launch(Stream& stream, const mtia_graph_parameters* parameters);

  // Blocks until all launches are done, but for one that the calling thread is inside of.
  void wait_for_launches();

 private:
  std::vector<uint64_t> announce(const Stream& stream) const;

  const std::shared_ptr<Graph> graph_;
  std::shared_ptr<ParallelReplay> parallel_;  // null: all nodes run on one thread, in the order of capture
  uint64_t cost_ = 0;
  int32_t num_threads_ = 1;
  bool may_run_inline_ = true;

  std::mutex mutex_;
  std::map<Stream*, Executor::Position> launches_;  // the last in each stream
};

struct GraphHandle {
  std::shared_ptr<Graph> graph;
};
struct GraphExecHandle {
  std::shared_ptr<GraphExec> exec;
};

inline GraphHandle* graph_of(mtia_graph handle) {
  return reinterpret_cast<GraphHandle*>(handle);
}
inline mtia_graph handle_of(GraphHandle* graph) {
  return reinterpret_cast<mtia_graph>(graph);
}
inline GraphExecHandle* graph_exec_of(mtia_graph_exec handle) {
  return reinterpret_cast<GraphExecHandle*>(handle);
}
inline mtia_graph_exec handle_of(GraphExecHandle* exec) {
  return reinterpret_cast<mtia_graph_exec>(exec);
}

}  // namespace torch_mtia::runtime::host
