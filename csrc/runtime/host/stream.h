// A stream of a software device: who runs an item, with how many threads, and what its failure leads to.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../../processor/attributes.h"
#include "../mtia_runtime.h"
#include "executor.h"

namespace torch_mtia::runtime::host {

class Capture;
class Device;
class Graph;

// Describes work that failed. Plain bytes: describing a failure cannot fail.
using WorkFailure = std::array<char, 512>;

// Leaked: work, waiters and executor threads refer to a stream until the process ends. A destroyed handle goes back to
// its device, which hands the stream out again.
class Stream {
 public:
  Stream(Device& device, int32_t index, int32_t priority, void* tag);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Runs the item now or queues it: see Note [Who runs an item]; records it while the stream is captured. Returns
  // MTIA_SUCCESS; with launch blocking, returns when the item is done, and MTIA_ERROR_LAUNCH_FAILED if it failed.
  // Throws when the item cannot be queued.
  mtia_status launch(const mtia_work& work);
  // The same for the launch of a graph, which reports to the tracer itself. Throws too if the stream is captured.
  mtia_status launch_graph(const mtia_work& work);
  // Runs a small item on the calling thread; false: the stream is not idle, and nothing happened. Likewise untraced.
  bool run_if_idle(const mtia_work& work);

  // Queues the item whatever its size and returns, also with launch blocking and in a capture.
  void enqueue(const mtia_work& work);

  // Runs a node of a graph that was launched in this stream, on any thread. `trace_id`: 0, or the tracer's.
  void run_node(const mtia_work& work, const Graph& graph, int32_t device, int32_t num_threads,
                uint64_t trace_id) noexcept;
  // The calling thread is inside a node of the graph, directly or through other items.
  static bool is_inside(const Graph& graph) noexcept;

  // What the stream is recorded in; null: it is not captured.
  std::shared_ptr<Capture> capture() const;
  // Returns the capture that the stream is part of now: the one given, or another one that was first.
  std::shared_ptr<Capture> begin_capture(std::shared_ptr<Capture> capture);
  void end_capture();
  bool is_captured() const noexcept { return is_captured_.load(std::memory_order_acquire); }

  bool is_idle() const noexcept { return executor_.is_idle(); }

  // The calling thread is inside an item of this stream, directly or through an item of another one. Everything before
  // that item is done, and waiting for anything after it would never end.
  bool runs_on_this_thread() const noexcept;

  // Somebody waits for what the stream has to do: it is no longer held back.
  void expedite() { executor_.expedite(); }

  Executor::Position position() { return executor_.position(); }
  void wait(const Executor::Position& position);  // returns at once inside an item of this stream
  void wait_until_idle();                         // likewise

  // For an item that is about to fail: what to say about it instead of its name and status.
  static void explain_failure(const WorkFailure& explanation) noexcept;

  // The first since the last call.
  std::optional<WorkFailure> take_failure() noexcept;
  // Makes it the calling thread's message and returns MTIA_ERROR_LAUNCH_FAILED.
  static mtia_status report(const WorkFailure& failure) noexcept;

  // For a stream that is handed out again. It must be idle.
  void reuse(int32_t priority, void* tag) noexcept;

  Device& device() const { return device_; }
  int32_t index() const { return index_; }
  int32_t priority() const { return priority_; }
  void* tag() const { return tag_; }

 private:
  // The items that the thread is inside of, innermost first.
  struct Frame {
    const Stream* stream;
    const Graph* graph;   // that the item is a node of; null: of none
    int32_t num_threads;  // granted
    Frame* outer;
    WorkFailure explanation;  // empty: there is none
  };

  mtia_status launch_untraced(const mtia_work& work);
  bool try_run(const mtia_work& work) noexcept;
  static bool waits_for_launches() noexcept;
  // `of_nodes`: the work runs nodes of a graph, which leave their failures with the stream.
  mtia_status launch_blocking(const mtia_work& work, bool of_nodes);
  mtia_status launch_nested(const mtia_work& work, const Frame& frame);
  // What is returned is empty if all went well.
  std::optional<WorkFailure> run(const mtia_work& work, int32_t num_threads) noexcept;
  template <typename Run>
  std::optional<WorkFailure> run_in_frame(const mtia_work& work, const Graph* graph, int32_t num_threads,
                                          Run&& run) noexcept;
  void run_on_executor(const mtia_work& work) noexcept;
  WorkFailure describe_failure(const mtia_work& work, mtia_status status) const noexcept;
  void keep(const WorkFailure& failure) noexcept;
  const Frame* frame_on_this_thread() const noexcept;

  INITIAL_EXEC static constinit thread_local Frame* innermost_frame;

  Device& device_;
  const int32_t index_;
  int32_t priority_;
  void* tag_;
  Executor executor_;

  std::atomic<bool> is_captured_{false};
  mutable std::mutex capture_mutex_;
  std::shared_ptr<Capture> capture_;

  std::atomic<bool> has_failure_{false};
  std::mutex failure_mutex_;
  WorkFailure failure_{};
};

inline Stream* stream_of(mtia_stream handle) {
  return reinterpret_cast<Stream*>(handle);
}
inline mtia_stream handle_of(Stream* stream) {
  return reinterpret_cast<mtia_stream>(stream);
}

}  // namespace torch_mtia::runtime::host
