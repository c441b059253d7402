// How operators launch work into a stream, whose own functions (core::Stream) are the only ways in.
//
// To run something on the device: take the stream (current_stream), describe the work (name, cost), launch a callable.
// The callable follows Note [Work item] in mtia_runtime.h: it holds plain data or host aliases (HostAlias.h), it can
// run any number of times, and what it throws is raised at the stream's next synchronizing call.
#pragma once

#include <ATen/Parallel.h>

#include <concepts>
#include <utility>

#include "../core/WorkItem.h"
#include "../device/AllocationScopes.h"
#include "../device/HostView.h"
#include "../device/IntraOpThreads.h"
#include "../device/MTIAStream.h"
#include "Cost.h"

namespace torch_mtia {

inline MTIAStream current_stream(c10::Device device) {
  return MTIAStream::current(device.index());
}

// CPU code on device memory needs a driver with a host view; operators that cannot do without it say so here.
//
// A device that is not in use yet has none available: a call that reaches it then has no operand there, only a
// generator, and is refused for that.
inline void require_host_view(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(HostView::available() || HostView::is_offered(), name,
                              " has no kernel for a driver without a host view of its memory");
}

// A callable that may know that it opens no parallel region and takes no workspace: small loops do. Setting the number
// of threads of OpenMP and MKL, and restoring it, takes as long as adding some hundred numbers.
template <typename Callable>
concept MaybeSerial = requires(const Callable& callable) {
  { callable.is_serial() } -> std::same_as<bool>;
};

// A callable with the number of ATen threads that the driver grants it, and with workspace that the machine has.
template <typename Callable>
struct WithIntraOpThreads {
  Callable callable;

  void operator()(const mtia_work_context& context) {
    if constexpr (MaybeSerial<Callable>) {
      if (callable.is_serial()) return callable();
    }
    IntraOpThreads threads(context.num_threads);
    const CheckedWorkspace workspace;
    callable();
  }
  void detach() noexcept
    requires core::Detachable<Callable>
  {
    callable.detach();
  }
  void list_operands(core::OperandSink& sink) const
    requires core::ListsOperands<Callable>
  {
    callable.list_operands(sink);
  }
};

// A callable where the launch wants it, so that nothing is moved unless the work is queued: Block block{{callable},
// name}.
template <typename Callable>
using Block = core::WorkBlock<WithIntraOpThreads<Callable>>;

// Runs the callable in the stream. With launch blocking, throws what it threw.
template <typename Callable>
void launch(const MTIAStream& stream, core::WorkInfo info, Block<Callable>& block) {
  info.num_threads = at::get_num_threads();
  stream.core().launch(info, block);
}
template <typename Callable>
void launch(const MTIAStream& stream, const core::WorkInfo& info, Callable&& callable) {
  Block<std::decay_t<Callable>> block{{std::forward<Callable>(callable)}, info.name};
  launch(stream, info, block);
}

}  // namespace torch_mtia
