// A graph: work of streams, captured to be launched any number of times. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "../runtime/loader.h"

namespace torch_mtia::core {

class Stream;

struct GraphNode {
  std::string name;
  const Stream* stream;  // in which it was captured
  uint64_t cost;
  std::vector<uint32_t> dependencies;  // indices of earlier nodes
};

// One thread at a time may call the functions of a graph; streams of its capture may be used by any number meanwhile.
// Functions throw runtime::DriverError.
class Graph {
 public:
  Graph() = default;
  virtual ~Graph();  // as destroy(); aborts a capture under way
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // False: the driver has no graphs.
  static bool is_supported();
  // Whether a capture is under way anywhere in the process. One load.
  static bool any_capture();

  // From now on the work of the stream, and of those that join (Note [Capture] in mtia_runtime.h), is recorded.
  void begin_capture(Stream& stream);
  // Gives the streams back to work that runs, and keeps what was recorded.
  void end_capture();
  bool is_capturing() const { return origin_ != nullptr; }
  // Streams of the capture under way, the first one first.
  std::vector<Stream*> captured_streams() const;

  // Something was refused that the graph would have needed: it cannot be launched. The first reason is kept.
  void invalidate(const std::string& reason);
  std::string invalid_reason() const;  // empty: it is valid

  bool has_nodes() const { return graph_ != nullptr; }
  bool is_instantiated() const { return exec_ != nullptr; }
  void instantiate();  // blocks until launches of what was instantiated before are done
  // What is instantiated stays.
  void forget_nodes() noexcept;
  std::vector<GraphNode> nodes() const;

  // As Stream::launch_graph: all nodes, as one item of the stream.
  void launch(Stream& stream, const mtia_graph_parameters* parameters);

  // Blocks until all launches are done, and frees everything. The graph is as new.
  void destroy() noexcept;

 protected:
  // Called for each stream when it becomes part of the capture, and when it is released from it. Must not throw in the
  // second case.
  virtual void stream_joined(Stream& /*stream*/) {}
  virtual void stream_left(Stream& /*stream*/) noexcept {}

 private:
  friend class Stream;

  // `stream` has waited for an event: it may have joined a capture.
  static void notice_join(Stream& stream);
  void add_stream(Stream& stream);
  void destroy_executable() noexcept;

  Stream* origin_ = nullptr;
  uint64_t capture_id_ = 0;
  mtia_graph graph_ = nullptr;
  mtia_graph_exec exec_ = nullptr;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Stream*> streams_;
  std::string invalid_reason_;
};

}  // namespace torch_mtia::core
