// Graphs: Note [Capture] in mtia_runtime.h. A launch runs the nodes one after the other, as they were captured. That is
// the shortest way and breaks one promise: a node with MTIA_WORK_BLOCKS that waits holds back the nodes behind it, so a
// captured host function must not wait for a parallel branch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "stream.h"

namespace vendor {

struct Node {
  Item item;
  int32_t device;
  void* stream_tag;
  Tail dependencies;
};

struct Graph {
  std::vector<Node> nodes;
};

// Thread safe.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  static void begin(Stream& origin);
  static std::shared_ptr<Graph> end(Stream& origin);

  uint64_t id() const { return id_; }
  void add(Stream& stream, Item item);
  Tail tail(Stream& stream);
  // What comes next in the stream, which becomes part of the capture, depends on `tail` too.
  void join(Stream& stream, const Tail& tail);

 private:
  explicit Capture(Stream& origin);

  const uint64_t id_;
  Stream& origin_;
  std::mutex mutex_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();  // null: it has ended
  std::map<Stream*, Tail> tails_;
};

class GraphExec : public std::enable_shared_from_this<GraphExec> {
 public:
  explicit GraphExec(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {}

  void launch(Stream& stream, const mtia_graph_parameters* parameters);
  void wait_for_launches();

 private:
  const std::shared_ptr<const Graph> graph_;
  std::mutex running_;  // launches exclude each other
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t launches_ = 0;  // under way
};

}  // namespace vendor
