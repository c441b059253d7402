#include "StreamCallback.h"

#include <memory>
#include <utility>

#include "../core/Observer.h"
#include "../core/Waits.h"
#include "../core/WorkItem.h"
#include "MTIACachingAllocator.h"
#include "MTIAGraph.h"

namespace torch_mtia {
namespace {

// The number of the function for an observer, until the last copy of its item dies.
class Watched {
 public:
  explicit Watched(const MTIAStream& stream) {
    if (core::Observer* observer = core::current_observer()) number_ = observer->submits_host_function(stream.core());
  }
  ~Watched() {
    if (core::Observer* observer = number_ != 0 ? core::current_observer() : nullptr)
      observer->ended_host_function(number_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  uint64_t number() const { return number_; }

 private:
  uint64_t number_ = 0;
};

}  // namespace

void launch_callback(const MTIAStream& stream, std::function<void()> function) {
  core::WorkInfo info{};
  info.name = "mtia::host_function";
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;  // not on the caller, whoever that is
  // Open until the last copy of the item dies. A graph's items live longer than they run: its replays open windows.
  std::shared_ptr<const MTIACachingAllocator::Window> window;
  std::shared_ptr<const Watched> watched;
  if (MTIAGraph* graph = MTIAGraph::of(stream)) {
    graph->note_host_function();
  } else {
    window = std::make_shared<const MTIACachingAllocator::Window>(stream.core());
    watched = std::make_shared<const Watched>(stream);
  }
  stream.core().launch(info, [function = std::move(function), window = std::move(window),
                              watched = std::move(watched)](const mtia_work_context& context) {
    const core::RunningWork running(*static_cast<core::Stream*>(context.stream_tag),
                                    watched != nullptr ? watched->number() : 0);
    function();
  });
}

}  // namespace torch_mtia
