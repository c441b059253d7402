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
#include "InterpreterLock.h"
#include "RunningWork.h"
#include "WorkItem.h"

namespace torch_mtia::core {

class Event;
class Graph;

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

  // Submits work: MTIA_SUCCESS, or, with launch blocking only, MTIA_ERROR_LAUNCH_FAILED when the work failed; the error
  // is then with take_error(). Without, failures of work show at the next synchronizing call.
  // A callable's exception is thrown with launch blocking: another thread may be launching into the stream, too.
  // Throws runtime::DriverError when the work cannot be submitted (bad fork, device lost), or not be captured.
  mtia_status launch(const mtia_work& work) {
    const mtia_status status =
        submit([&](const mtia_runtime_api& driver) { return driver.stream_launch(handle_, &work); });
    if (status != MTIA_SUCCESS && status != MTIA_ERROR_LAUNCH_FAILED) refuse_work(status);
    return status;
  }
  template <typename Callable>
  void launch(const WorkInfo& info, Callable&& callable) {
    std::exception_ptr error;
    // What is captured runs when this call has long returned, and so may what running work gives to other streams.
    const bool throws =
        launch_blocking_ && graph() == nullptr && (!RunningWork::on_this_thread() || RunningWork::on_this_thread(this));
    WorkBlock<std::decay_t<Callable>> block{std::forward<Callable>(callable), info.name, throws ? &error : nullptr};
    launch(make_work(info, block));
    if (error) [[unlikely]]
      std::rethrow_exception(error);
  }

  // Submits a copy of `size` bytes, between device memory and what `kind` says. Throws runtime::DriverError.
  void copy(uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
    runtime::check(
        submit([&](const mtia_runtime_api& driver) { return driver.memory_copy(handle_, to, from, size, kind); }),
        &mtia_runtime_api::memory_copy);
  }
  // Submits a fill of `count` elements with a pattern. Throws runtime::DriverError.
  void fill(mtia_device_ptr to, const void* pattern, uint32_t pattern_size, uint64_t count) {
    runtime::check(submit([&](const mtia_runtime_api& driver) {
                     return driver.memory_fill(handle_, to, pattern, pattern_size, count);
                   }),
                   &mtia_runtime_api::memory_fill);
  }

  // The graph in which work of the stream is recorded now; null: none.
  Graph* graph() const { return graph_.load(std::memory_order_acquire); }

  bool query() const;  // true: idle

  // Blocks until everything submitted before the call is done; then take_error() has the first error, if any.
  void wait_until_idle();

  // The same for who comes upon a stream that another thread captures: false, at once.
  bool is_idle() const;
  bool wait_unless_captured();

  // Work submitted later waits for the event's last record, or the stream joins its capture. Does not block.
  void wait(const Event& event);

  // The first error since the last call, which forgets it.
  std::optional<WorkError> take_error();

  void record_error(const char* operator_name, std::exception_ptr exception, std::string message) noexcept;

 private:
  friend class Graph;

  // With launch blocking the driver waits for the work, and for what is before it, which may want the interpreter lock.
  template <typename Call>
  mtia_status submit(Call call) {
    if (!launch_blocking_) [[likely]]
      return call(runtime::driver());
    const WithoutGil without_gil;
    return call(runtime::driver());
  }
  [[noreturn]] void refuse_work(mtia_status status);
  void set_graph(Graph* graph) { graph_.store(graph, std::memory_order_release); }

  Stream(int32_t device, int32_t priority)
      : device_(device), priority_(priority), launch_blocking_(runtime::launch_blocking()) {}

  const int32_t device_;
  const int32_t priority_;
  const bool launch_blocking_;
  mtia_stream handle_ = nullptr;
  std::atomic<Graph*> graph_{nullptr};
  std::atomic<bool> has_error_{false};
  std::mutex error_mutex_;
  std::optional<WorkError> error_;
};

}  // namespace torch_mtia::core
