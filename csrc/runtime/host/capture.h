// The recording of work of streams as a graph: see Note [Capture] in mtia_runtime.h.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../mtia_runtime.h"
#include "graph.h"

namespace torch_mtia::runtime::host {

class Stream;

// The nodes that what comes next in a stream depends on, ascending.
using Tail = std::vector<uint32_t>;

// Thread safe. Streams and events that were part of it keep it; the graph leaves it when it ends.
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

}  // namespace torch_mtia::runtime::host
