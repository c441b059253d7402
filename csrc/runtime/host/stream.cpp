#include "stream.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "driver.h"
#include "error.h"
#include "graph.h"
#include "work.h"

namespace torch_mtia::runtime::host {

INITIAL_EXEC constinit thread_local Stream::Frame* Stream::innermost_frame = nullptr;

namespace {

// Each stream has delays of its own; 0 stays 0.
uint64_t delay_seed_of(const Device& device, int32_t stream) {
  const auto number = static_cast<uint64_t>(device.index()) << 32 | static_cast<uint64_t>(stream);
  return device.delay_seed() == 0 ? 0 : device.delay_seed() + number * 0x9e3779b97f4a7c15 + 1;
}

}  // namespace

Stream::Stream(Device& device, int32_t index, int32_t priority, void* tag)
    : device_(device),
      index_(index),
      priority_(priority),
      tag_(tag),
      executor_([](void* owner, const mtia_work& work) noexcept { static_cast<Stream*>(owner)->run_on_executor(work); },
                [](void* owner) noexcept { static_cast<Stream*>(owner)->device_.release_threads(); }, this,
                "mtia:" + std::to_string(device.index()) + "/s" + std::to_string(index), delay_seed_of(device, index)) {
}

void Stream::enqueue(const mtia_work& work) {
  if (const mtia_tracer* tracer = current_tracer.load(std::memory_order_acquire)) [[unlikely]] {
    submit_traced(*tracer, tag_, work, [this](const mtia_work& item) { executor_.push(item); });
  } else {
    executor_.push(work);
  }
}

mtia_status Stream::launch(const mtia_work& work) {
  if (is_captured()) [[unlikely]] {
    // What an earlier item of the stream launches belongs to that item.
    const auto capture = this->capture();
    if (capture != nullptr && !runs_on_this_thread()) return capture->record(*this, work);
  }
  if (const mtia_tracer* tracer = current_tracer.load(std::memory_order_acquire)) [[unlikely]] {
    return submit_traced(*tracer, tag_, work, [this](const mtia_work& item) { return launch_untraced(item); });
  }
  return launch_untraced(work);
}

mtia_status Stream::launch_graph(const mtia_work& work) {
  if (is_captured()) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                  "graph_launch: the stream is being captured, and a graph cannot contain "
                  "the launch of another one");
  }
  return waits_for_launches() ? launch_blocking(work, /*of_nodes=*/true) : launch_untraced(work);
}

bool Stream::run_if_idle(const mtia_work& work) {
  return !is_captured() && !waits_for_launches() && try_run(work);
}

// Work that runs never waits: the other stream may wait for its own.
bool Stream::waits_for_launches() noexcept {
  return (process_state.load(std::memory_order_relaxed) & kLaunchBlocking) != 0 && innermost_frame == nullptr;
}

inline bool Stream::try_run(const mtia_work& work) noexcept {
  if (!executor_.try_enter()) return false;
  const auto failure = run(work, 1);
  if (failure) [[unlikely]]
    keep(*failure);
  executor_.leave();
  return true;
}

inline mtia_status Stream::launch_untraced(const mtia_work& work) {
  const bool blocking = waits_for_launches();
  if (is_small(work) && !blocking && try_run(work)) [[likely]]
    return MTIA_SUCCESS;
  if (const Frame* frame = frame_on_this_thread()) return launch_nested(work, *frame);
  if (blocking) return launch_blocking(work, /*of_nodes=*/false);
  executor_.push(work);
  return MTIA_SUCCESS;
}

// Also here large work runs on the executor: only there may it use several threads.
mtia_status Stream::launch_blocking(const mtia_work& work, bool of_nodes) {
  // Other threads may be launching into the stream too: the failure goes past what the stream keeps.
  struct Awaited {
    Stream* stream;
    QueueSlot* slot;
    bool of_nodes;
    std::optional<WorkFailure> failure;
    ~Awaited() {
      slot->clear();
      QueueSlotPool::destroy(slot);
    }
  } awaited{this, QueueSlotPool::create(work.args_size), of_nodes, {}};
  awaited.slot->fill(work);
  auto* args = &awaited;
  mtia_work item = work;
  item.run = [](void* block, const mtia_work_context* context) noexcept -> mtia_status {
    Awaited& own = **static_cast<Awaited**>(block);
    own.failure = own.stream->run(own.slot->work, context->num_threads);
    // Here, not after the wait: the next graph that is launched in the stream stores its failures there, too.
    if (own.of_nodes && !own.failure) own.failure = own.stream->take_failure();
    return MTIA_SUCCESS;
  };
  item.relocate = nullptr;
  item.destroy = nullptr;
  item.args = &args;
  item.args_size = sizeof(args);
  item.accesses = nullptr;
  executor_.wait(executor_.push(item));
  return awaited.failure ? report(*awaited.failure) : MTIA_SUCCESS;
}

// The threads are those of the item around it.
mtia_status Stream::launch_nested(const mtia_work& work, const Frame& frame) {
  const auto failure = run(work, threads_for(work, frame.num_threads));
  if (!failure) return MTIA_SUCCESS;
  if ((process_state.load(std::memory_order_relaxed) & kLaunchBlocking) != 0) return report(*failure);
  keep(*failure);
  return MTIA_SUCCESS;
}

template <typename Run>
inline std::optional<WorkFailure> Stream::run_in_frame(const mtia_work& work, const Graph* graph, int32_t num_threads,
                                                       Run&& run) noexcept {
  Frame frame;
  frame.stream = this;
  frame.graph = graph;
  frame.num_threads = num_threads;
  frame.outer = innermost_frame;
  frame.explanation[0] = '\0';
  innermost_frame = &frame;
  const mtia_status status = run();
  MTIA_ASSERT(innermost_frame == &frame);
  innermost_frame = frame.outer;
  if (status == MTIA_SUCCESS) [[likely]]
    return std::nullopt;
  return frame.explanation[0] != '\0' ? frame.explanation : describe_failure(work, status);
}

std::optional<WorkFailure> Stream::run(const mtia_work& work, int32_t num_threads) noexcept {
  const mtia_work_context context{device_.index(), num_threads, tag_};
  return run_in_frame(work, /*graph=*/nullptr, num_threads, [&] { return work.run(work.args, &context); });
}

void Stream::run_node(const mtia_work& work, const Graph& graph, int32_t device, int32_t num_threads,
                      uint64_t trace_id) noexcept {
  const mtia_work_context context{device, num_threads, tag_};
  const auto failure = run_in_frame(work, &graph, num_threads, [&] {
    return trace_id == 0 ? work.run(work.args, &context) : run_traced(work, context, trace_id);
  });
  if (failure) [[unlikely]]
    keep(*failure);
}

std::shared_ptr<Capture> Stream::capture() const {
  if (!is_captured()) return nullptr;
  const std::lock_guard lock(capture_mutex_);
  return capture_;
}

std::shared_ptr<Capture> Stream::begin_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(capture_mutex_);
  if (capture_ == nullptr) capture_ = std::move(capture);
  is_captured_.store(true, std::memory_order_release);
  return capture_;
}

void Stream::end_capture() {
  const std::lock_guard lock(capture_mutex_);
  capture_ = nullptr;
  is_captured_.store(false, std::memory_order_release);
}

bool Stream::is_inside(const Graph& graph) noexcept {
  const Frame* frame = innermost_frame;
  while (frame != nullptr && frame->graph != &graph) frame = frame->outer;
  return frame != nullptr;
}

WorkFailure Stream::describe_failure(const mtia_work& work, mtia_status status) const noexcept {
  WorkFailure text{};
  std::snprintf(text.data(), text.size(), "%s failed on stream %d of device %d (status %d); the stream remains usable",
                work.name != nullptr ? work.name : "work", index_, device_.index(), static_cast<int>(status));
  return text;
}

void Stream::explain_failure(const WorkFailure& explanation) noexcept {
  if (innermost_frame != nullptr) innermost_frame->explanation = explanation;
}

void Stream::run_on_executor(const mtia_work& work) noexcept {
  const int32_t num_threads = threads_for(work, work.num_threads);
  const ParallelToken token(device_, num_threads > 1);
  if (const auto failure = run(work, token.taken() ? num_threads : 1)) keep(*failure);
}

bool Stream::runs_on_this_thread() const noexcept {
  return frame_on_this_thread() != nullptr;
}

const Stream::Frame* Stream::frame_on_this_thread() const noexcept {
  const Frame* frame = innermost_frame;
  while (frame != nullptr && frame->stream != this) frame = frame->outer;
  return frame;
}

void Stream::wait(const Executor::Position& position) {
  if (!runs_on_this_thread()) executor_.wait(position);
}

void Stream::wait_until_idle() {
  if (!is_idle() && !runs_on_this_thread()) executor_.wait(executor_.position());
}

void Stream::keep(const WorkFailure& failure) noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (has_failure_.load(std::memory_order_relaxed)) return;
  failure_ = failure;
  has_failure_.store(true, std::memory_order_release);
}

std::optional<WorkFailure> Stream::take_failure() noexcept {
  if (!has_failure_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(failure_mutex_);
  if (!has_failure_.exchange(false, std::memory_order_relaxed)) return std::nullopt;
  return failure_;
}

mtia_status Stream::report(const WorkFailure& failure) noexcept {
  set_last_error_message(failure.data());
  return MTIA_ERROR_LAUNCH_FAILED;
}

void Stream::reuse(int32_t priority, void* tag) noexcept {
  MTIA_ASSERT(is_idle());
  priority_ = priority;
  tag_ = tag;
  take_failure();
}

}  // namespace torch_mtia::runtime::host
