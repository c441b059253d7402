// The stream that the last call of a kind was given to: of the calls that run now, and of those in each capture. A call
// in a capture is ordered after nothing outside of it.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "../device/MTIAGraph.h"
#include "../device/MTIAStream.h"

namespace torch_mtia {

class LastStreams {
 public:
  // The one before `stream`, which is the last one from now on. Not thread safe.
  std::optional<MTIAStream> exchange(const MTIAStream& stream) {
    std::erase_if(captured_, [](const Captured& each) { return MTIAGraph::of(each.stream) != each.graph; });
    const MTIAGraph* const graph = MTIAGraph::of(stream);
    if (graph == nullptr) {
      const auto previous = std::exchange(eager_, stream);
      return previous && MTIAGraph::of(*previous) == nullptr ? previous : std::nullopt;
    }
    const auto last =
        std::find_if(captured_.begin(), captured_.end(), [&](const Captured& each) { return each.graph == graph; });
    if (last != captured_.end()) return std::exchange(last->stream, stream);
    captured_.push_back({graph, stream});
    return std::nullopt;
  }

 private:
  struct Captured {
    const MTIAGraph* graph;
    MTIAStream stream;
  };
  std::optional<MTIAStream> eager_;
  std::vector<Captured> captured_;
};

}  // namespace torch_mtia
