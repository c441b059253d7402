// A graph: work of streams, captured to be launched any number of times. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
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
  // How many captures have ended so far.
  static uint64_t num_ended() { return ended.load(std::memory_order_acquire); }

  // From now on the work of the stream, and of those that join (Note [Capture] in mtia_runtime.h), is recorded.
  void begin_capture(Stream& stream);
  // Releases the streams; the graph has the captured work.
  void end_capture();
  bool is_capturing() const { return origin_ != nullptr; }
  uint64_t capture_id() const { return capture_id_; }  // of the capture under way, or the last one
  // Streams of the capture under way, the first one first.
  std::vector<Stream*> captured_streams() const;

  // The graph lacks work that was refused, and cannot be launched. The first reason wins.
  void invalidate(const std::string& reason);
  // The same for the capture of this id, if it is still under way.
  static void invalidate_capture(uint64_t capture_id, const std::string& reason);
  // Calls `use` with the graph that captures the stream, if there is one. Another thread may own the capture, which
  // cannot end during the call.
  static void with_capture_of(const Stream& stream, const std::function<void(Graph&)>& use);
  std::string invalid_reason() const;  // empty: it is valid

  bool has_nodes() const { return graph_ != nullptr; }
  bool is_instantiated() const { return executable_ != nullptr; }
  void instantiate();  // blocks until launches of what was instantiated before are done
  // Frees the captured nodes, not the instantiated graph.
  void forget_nodes() noexcept;
  std::vector<GraphNode> nodes() const;

  // As Stream::launch_graph: all nodes, as one item of the stream.
  void launch(Stream& stream, const mtia_graph_parameters* parameters);

  // Blocks until all launches are done, frees everything, and lets go of `memory`, which launches use. The graph is as
  // new. Running work (Waits.h) must not wait: inside of it, the launches and `memory` are left to destroy_late.
  void destroy(std::shared_ptr<const void> memory = nullptr) noexcept;
  // Destroys graphs that running work has left, and blocks until their launches are done. True: there was one. Called
  // by the next capture, by the end of the next graph, and when memory is used up. Does nothing inside running work.
  static bool destroy_late() noexcept;

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

  // The instantiated graph. `next`: in the list of destroy_late, so that appending cannot fail.
  struct Executable {
    mtia_graph_exec handle = nullptr;
    std::shared_ptr<const void> memory;
    Executable* next = nullptr;
    ~Executable();  // blocks
  };
  // Graphs that running work has left. Lock-free: a forked child might find a lock taken.
  static std::atomic<Executable*> late;
  static void destroy(std::unique_ptr<Executable> executable) noexcept;

  static std::atomic<uint64_t> ended;

  Stream* origin_ = nullptr;
  uint64_t capture_id_ = 0;
  mtia_graph graph_ = nullptr;
  std::unique_ptr<Executable> executable_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Stream*> streams_;
  std::string invalid_reason_;
};

}  // namespace torch_mtia::core
