// How operators launch work into a stream, whose own functions (core::Stream) are the only ways in.
//
// To run something on the device: take the stream (current_stream), describe the work (name, cost), launch a callable.
// The callable follows Note [Work item] in mtia_runtime.h: it holds plain data or host aliases (HostAlias.h), it can
// run any number of times, and what it throws is raised at the stream's next synchronizing call.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <utility>

#include "../core/WorkItem.h"
#include "../device/AllocationScopes.h"
#include "../device/HostView.h"
#include "../device/IntraOpThreads.h"
#include "../device/MTIAStream.h"
#include "BatchInvariant.h"

namespace torch_mtia {

// How long operators are estimated to take on one thread. Work item by work item, the driver decides by it what runs
// within the call and how many threads are worth waking (runtime/host/work.h), so an estimate has to be on the right
// side of that line, and no more. `python -m benchmarks.costs` measures these numbers on the machine at hand.
//
// What belongs to one operator stands with it: `weight` in yaml/native_functions.yaml, and DrawInfo in Random.h.
//
// Bytes that one core moves within its second-level cache, in single precision (an AMD EPYC of 2024 with AVX-512: 60).
// Larger operands are slower; for them the estimate only has to say that the work is large.
inline constexpr uint64_t kBytesPerNanosecond = 64;

inline uint64_t cost_of_bytes(uint64_t bytes) {
  return bytes / kBytesPerNanosecond;
}

// Multiplications and additions that one core does in a good product, convolution or attention.
inline constexpr uint64_t kOperationsPerNanosecond = 64;

inline uint64_t cost_of_operations(uint64_t operations) {
  return operations / kOperationsPerNanosecond;
}

// What a CPU kernel on lists spends on each tensor, however small it is, in nanoseconds.
inline constexpr uint64_t kNanosecondsPerTensor = 400;

inline uint64_t cost_of_list(at::TensorList list) {
  return list.size() * kNanosecondsPerTensor;
}

// Elements of all arguments together up to which an operator that falls back is small, whatever it does.
inline constexpr int64_t kSmallFallbackNumel = 16 * 1024;

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

// Whether the order of a callable's sums may depend on the number of threads: see Note [Batch invariance].
enum class Order { kFixed, kByThreads };

// Runs the callable in the stream. With launch blocking, throws what it threw.
template <typename Callable>
void launch(const MTIAStream& stream, core::WorkInfo info, Block<Callable>& block, Order order = Order::kFixed) {
  info.num_threads = order == Order::kByThreads && is_batch_invariant() ? 1 : at::get_num_threads();
  stream.core().launch(info, block);
}
template <typename Callable>
void launch(const MTIAStream& stream, const core::WorkInfo& info, Callable&& callable, Order order = Order::kFixed) {
  Block<std::decay_t<Callable>> block{{std::forward<Callable>(callable)}, info.name};
  launch(stream, info, block, order);
}

}  // namespace torch_mtia
