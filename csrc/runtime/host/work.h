// Work items: what they cost, how their argument blocks move, how the driver writes its own (markers, waits, copies and
// fills), and the tracer of each.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Costs and threads ---------------------------------------------------------------------------------------------------
//
// What the device's own steps take, in nanoseconds on one thread. The costs of work are the caller's estimates; what is
// decided by them is decided against these. Measured on servers with two to eight cores.

// Waking a sleeping thread and waiting for it: work for less is not worth one.
inline constexpr uint64_t kThreadCostNs = 10000;

// The one measure of small and large. Work that is not worth a second thread may run on the one that launches it, if
// its stream is idle, and a chain of a graph's nodes stays on the thread that replays it. Where other programs compete
// for the cores, a parallel loop takes milliseconds, however short: the threads of its team wait for each other.
inline constexpr uint64_t kInlineCostNs = 2 * kThreadCostNs;

// What is beyond the greatest number is that.
constexpr uint64_t add_costs(uint64_t a, uint64_t b) noexcept {
  constexpr uint64_t kGreatest = std::numeric_limits<uint64_t>::max();
  return a > kGreatest - b ? kGreatest : a + b;
}

// What running a node of a graph takes beside its work.
inline constexpr uint64_t kNodeCostNs = 200;

// Of a program of a kernel whose image does not say, until it has run.
inline constexpr uint64_t kUnknownProgramCostNs = 1000;

// A thread takes the programs of a kernel in pieces, which are long against taking one.
inline constexpr uint64_t kPieceCostNs = 4000;

// Bytes that a copy moves within the second-level cache. Larger ones are slower, and large at any rate.
inline constexpr uint64_t kBytesPerNs = 40;

// Of a clock that never goes back.
inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// See kInlineCostNs.
inline bool is_small(const mtia_work& work) noexcept {
  return (work.flags & (MTIA_WORK_MAY_RUN_INLINE | MTIA_WORK_BLOCKS)) == MTIA_WORK_MAY_RUN_INLINE &&
         work.cost <= kInlineCostNs;
}
// Small work gets one thread wherever it runs. Otherwise the last bits of a sum would depend on whether the stream was
// idle when it was launched, and a replay would differ from what it repeats.
inline int32_t threads_for(const mtia_work& work, int32_t available) noexcept {
  return is_small(work) ? 1 : std::clamp(work.num_threads, 1, available);
}

// How large work uses the threads that it is granted.
struct Parallelism {
  mtia_parallel_for parallel_for = nullptr;
  int32_t num_cores = 1;
  int32_t (*num_threads)() = nullptr;  // see mtia_init_params

  int32_t wanted_threads() const { return num_threads == nullptr ? num_cores : std::min(num_threads(), num_cores); }
};

// Items ---------------------------------------------------------------------------------------------------------------

// Moves the argument block of an item to `to`, which has room for it.
inline void move_arguments(void* to, const mtia_work& work) noexcept {
  if (work.relocate != nullptr) {
    work.relocate(to, work.args);
  } else if (work.args_size != 0) {
    std::memcpy(to, work.args, work.args_size);
  }
}

// The argument block of a callable void(const mtia_work_context&) noexcept. Never fails.
template <typename Callable>
struct OwnWork {
  static_assert(std::is_nothrow_move_constructible_v<Callable>);
  static_assert(std::is_nothrow_invocable_v<Callable&, const mtia_work_context&>);
  static_assert(alignof(Callable) <= 16);

  Callable callable;

  // The item, valid while this object lives.
  mtia_work describe(const char* name, uint32_t flags, uint64_t cost, int32_t num_threads) {
    mtia_work work{};
    work.struct_size = sizeof(work);
    work.flags = flags;
    work.run = [](void* args, const mtia_work_context* context) noexcept {
      static_cast<OwnWork*>(args)->callable(*context);
      return MTIA_SUCCESS;
    };
    if constexpr (!std::is_trivially_copyable_v<Callable>) {
      work.relocate = [](void* to, void* from) noexcept {
        ::new (to) OwnWork(std::move(*static_cast<OwnWork*>(from)));
      };
      work.destroy = [](void* args) noexcept { static_cast<OwnWork*>(args)->~OwnWork(); };
    }
    work.args = this;
    work.args_size = sizeof(*this);
    work.name = name;
    work.cost = cost;
    work.num_threads = num_threads;
    return work;
  }
};

template <typename Callable>
OwnWork(Callable) -> OwnWork<Callable>;

// Tracing -------------------------------------------------------------------------------------------------------------
//
// Receives the submission and the run of each work item: see Note [Tracing] in mtia_runtime.h. Without a tracer an item
// costs one load more. With one, the item is submitted inside another item, which takes the time; so nothing else here
// knows about tracing.

inline constinit std::atomic<const mtia_tracer*> current_tracer{nullptr};

inline int64_t epoch_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Runs the item and tells the tracer, if there still is one.
inline mtia_status run_traced(const mtia_work& item, const mtia_work_context& context, uint64_t trace_id) {
  const int64_t start = epoch_ns();
  const mtia_status status = item.run(item.args, &context);
  const int64_t end = epoch_ns();
  if (const mtia_tracer* tracer = current_tracer.load(std::memory_order_acquire)) tracer->ran(trace_id, start, end);
  return status;
}

// An item whose runs the tracer hears of. Submit `work()` in place of the original while this object lives.
class alignas(16) TracedWork {
 public:
  TracedWork(const mtia_work& original, uint64_t trace_id) noexcept : original_(original), trace_id_(trace_id) {}

  mtia_work work() noexcept {
    mtia_work work = original_;
    work.run = &run;
    work.relocate = &relocate;
    work.destroy = &destroy;
    work.args = this;
    work.args_size = sizeof(TracedWork) + original_.args_size;
    work.accesses = original_.accesses != nullptr ? &accesses : nullptr;
    return work;
  }

 private:
  static mtia_status run(void* args, const mtia_work_context* context) noexcept {
    const auto& self = *static_cast<const TracedWork*>(args);
    return run_traced(self.original_, *context, self.trace_id_);
  }

  // A copy is followed by the original's argument block.
  static void relocate(void* to, void* from) noexcept {
    auto* copy = ::new (to) TracedWork(*static_cast<const TracedWork*>(from));
    mtia_work& item = copy->original_;
    void* block = copy + 1;
    move_arguments(block, item);
    item.args = block;
  }
  static void destroy(void* args) noexcept {
    const mtia_work& item = static_cast<const TracedWork*>(args)->original_;
    if (item.destroy != nullptr) item.destroy(item.args);
  }
  static uint32_t accesses(const void* args, mtia_access* list, uint32_t capacity) noexcept {
    const mtia_work& item = static_cast<const TracedWork*>(args)->original_;
    return item.accesses(item.args, list, capacity);
  }

  mtia_work original_;
  uint64_t trace_id_;
};

// Calls submit(item), with the item itself or with one that is traced.
template <typename Submit>
auto submit_traced(const mtia_tracer& tracer, void* stream_tag, const mtia_work& item, Submit&& submit) {
  struct Submission {
    const mtia_tracer& tracer;
    uint64_t trace_id;
    ~Submission() {
      if (trace_id != 0) tracer.submitted(trace_id);
    }
  } const submission{tracer, tracer.submitting(stream_tag, &item)};
  if (submission.trace_id == 0) return submit(item);
  TracedWork traced(item, submission.trace_id);
  return submit(traced.work());
}

}  // namespace torch_mtia::runtime::host
