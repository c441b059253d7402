// Who is told of each work item: see Note [Tracing] in mtia_runtime.h.
//
// Without a tracer an item costs one load more. With one, the item is submitted inside another item, which takes the
// time; so nothing else here knows about tracing.
#pragma once

#include <ctime>

#include <atomic>
#include <cstdint>
#include <new>

#include "../mtia_runtime.h"
#include "work.h"

namespace torch_mtia::runtime::host {

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

  // A copy has the original's argument block right behind it.
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
