// A stream of the driver, with the C++ exceptions of its work. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "../runtime/loader.h"
#include "Hooks.h"
#include "Waits.h"
#include "WorkItem.h"

namespace torch_mtia::core {

class Event;
class Graph;
class Stream;

// How the host memory of a copy is used afterwards, for observers.
enum class CopyUse {
  kWaitedFor,     // the caller waits before the program can use it
  kNotWaitedFor,  // the program may use it too early
  kByFallback,    // kWaitedFor, and a kernel may ignore the bytes
};

// The first exception that work of a stream threw since the last synchronizing call.
struct WorkError {
  std::exception_ptr exception;  // null: the driver itself reported the failure, described by `message`
  std::string operator_name;     // a copy: the operator may be gone when the error is raised
  std::string message;
};

// Streams are never destroyed: work, events and allocator blocks refer to them from any thread until the process ends.
class Stream {
 public:
  // Throws runtime::DriverError. The device must be initialized.
  static Stream* create(int32_t device, int32_t priority);

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int32_t device() const { return device_; }
  int32_t priority() const { return priority_; }
  mtia_stream handle() const { return handle_; }

  // Submission. Each of the functions up to launch_graph submits one item of work, and no other function does.
  //
  // They return at once, and failures of the work show at the next synchronizing call. With launch blocking they return
  // when the work is done, and raise its failure as raise_error does. Throw runtime::DriverError for what cannot be
  // submitted (bad fork, device lost, not to be captured); a graph that lacks it becomes invalid.
  void launch(const mtia_work& work) {
    check_capture(work.name, work.accesses != nullptr ? &list_spans : nullptr, &work);
    if (Observer* observer = current_observer()) [[unlikely]]
      observer->submits(*this, work.name, work.accesses != nullptr ? &list_spans : nullptr, &work);
    submit(&mtia_runtime_api::stream_launch, handle_, &work);
  }
  // With launch blocking, throws what the callable threw: another thread may be launching into the stream, too.
  template <typename Callable>
  void launch(const WorkInfo& info, Callable&& callable) {
    WorkBlock<std::decay_t<Callable>> block{std::forward<Callable>(callable), info.name};
    launch(info, block);
  }
  // The same for a callable that is in its block already.
  template <typename Callable>
  void launch(const WorkInfo& info, WorkBlock<Callable>& block) {
    std::optional<Awaited> awaited;
    // Captured work runs after this call has returned, and so may work that running work launches in other streams.
    const bool throws =
        launch_blocking_ && graph() == nullptr && (!RunningWork::on_this_thread() || RunningWork::on_this_thread(this));
    block.awaited = throws ? awaited.emplace().ticket() : 0;
    const mtia_work work = make_work(info, block);
    OperandList list = nullptr;
    if constexpr (ListsOperands<Callable>) list = &WorkBlock<Callable>::list_operands;
    check_capture(work.name, list, &block);
    if (Observer* observer = current_observer()) [[unlikely]] {
      launch_observed(*observer, work, list);
    } else {
      submit(&mtia_runtime_api::stream_launch, handle_, &work);
    }
    if (awaited) [[unlikely]]
      awaited->raise_error();
  }
  // Copies `size` bytes.
  void copy(uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind, CopyUse use = CopyUse::kWaitedFor) {
    if (current_observer() != nullptr || hooks.check_capture.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      notify_copy(to, from, size, kind, use);
    submit(&mtia_runtime_api::memory_copy, handle_, to, from, size, kind);
  }
  // Fills `count` elements with a pattern.
  void fill(mtia_device_ptr to, const void* pattern, uint32_t pattern_size, uint64_t count) {
    if (current_observer() != nullptr) [[unlikely]]
      notify_fill(to, pattern_size * count);
    submit(&mtia_runtime_api::memory_fill, handle_, to, pattern, pattern_size, count);
  }
  void launch_kernel(const char* name, const mtia_kernel_launch& launch) {
    if (Observer* observer = current_observer()) [[unlikely]]
      return launch_watched(*observer, name, launch);
    submit(&mtia_runtime_api::stream_launch_kernel, handle_, &launch);
  }
  // `parameters` may be null.
  void launch_graph(mtia_graph_exec graph, const mtia_graph_parameters* parameters) {
    submit(&mtia_runtime_api::graph_launch, graph, handle_, parameters);
  }

  // The graph that captures the stream; null: none.
  Graph* graph() const { return graph_.load(std::memory_order_acquire); }

  bool query() const;  // true: idle

  // Blocks until everything submitted before the call is done; then take_error() has the first error, if any.
  void wait_until_idle();

  // The same, but false at once for a stream that is captured, by another thread perhaps.
  bool is_idle() const;
  bool wait_unless_captured();

  // Work submitted later waits for the event's last record, or the stream joins its capture. Does not block.
  void wait(const Event& event);

  // Returns the first error since the last call, and clears it.
  std::optional<WorkError> take_error();
  // Raises it, if there is one.
  void raise_error();

  void record_error(const char* operator_name, std::exception_ptr exception, std::string message) noexcept;

 private:
  friend class Graph;

  void check_capture(const char* name, OperandList list, const void* work) const {
    const auto check = hooks.check_capture.load(std::memory_order_relaxed);
    if (check != nullptr && list != nullptr && graph() != nullptr) [[unlikely]]
      check(*this, name, list, work);
  }
  template <typename... Parameters, typename... Arguments>
  void submit(mtia_status (*mtia_runtime_api::*function)(Parameters...), Arguments... arguments) {
    mtia_status status = MTIA_SUCCESS;
    if (!launch_blocking_) [[likely]] {
      status = (driver_.*function)(arguments...);
    } else {
      const BlockingWait wait(/*takes_time=*/false);  // the driver waits for the work, and for what is before it
      status = (driver_.*function)(arguments...);
    }
    if (status != MTIA_SUCCESS) [[unlikely]]
      refuse(status, runtime::describe(function));
  }
  // The driver has not taken the work, or, with launch blocking, the work has failed.
  [[noreturn]] void refuse(mtia_status status, const std::string& function);
  void launch_observed(Observer& observer, const mtia_work& work, OperandList list);
  void notify_copy(uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind, CopyUse use) const;
  void notify_fill(uint64_t to, uint64_t size) const;
  void launch_watched(Observer& observer, const char* name, const mtia_kernel_launch& launch);
  static void list_spans(const void* work, OperandSink& sink);
  void set_graph(Graph* graph) { graph_.store(graph, std::memory_order_release); }

  Stream(int32_t device, int32_t priority)
      : device_(device),
        priority_(priority),
        launch_blocking_(runtime::launch_blocking()),
        driver_(runtime::driver()) {}

  const int32_t device_;
  const int32_t priority_;
  const bool launch_blocking_;
  const mtia_runtime_api& driver_;
  mtia_stream handle_ = nullptr;
  std::atomic<Graph*> graph_{nullptr};
  std::atomic<bool> has_error_{false};
  std::mutex error_mutex_;
  std::optional<WorkError> error_;
};

}  // namespace torch_mtia::core
