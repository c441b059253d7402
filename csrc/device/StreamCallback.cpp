#include "StreamCallback.h"

#include <memory>
#include <utility>

#include "../core/RunningWork.h"
#include "../core/WorkItem.h"
#include "MTIACachingAllocator.h"
#include "MTIAGraph.h"

namespace torch_mtia {

void launch_callback(const MTIAStream& stream, std::function<void()> function) {
  core::WorkInfo info{};
  info.name = "mtia::host_function";
  info.flags = MTIA_WORK_CAPTURABLE;  // not on the caller, whoever that is
  // Open until the last copy of the item dies. A graph's items live longer than they run: its replays open windows.
  std::shared_ptr<const MTIACachingAllocator::Window> window;
  if (MTIAGraph* graph = MTIAGraph::of(stream)) {
    graph->note_host_function();
  } else {
    window = std::make_shared<const MTIACachingAllocator::Window>(stream.core());
  }
  stream.core().launch(info,
                       [function = std::move(function), window = std::move(window)](const mtia_work_context& context) {
                         const core::RunningWork running(*static_cast<core::Stream*>(context.stream_tag));
                         function();
                       });
}

}  // namespace torch_mtia
