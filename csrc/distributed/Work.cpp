#include "Work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "../collectives/Engine.h"
#include "../core/Waits.h"
#include "../device/MTIAGraph.h"
#include "Collective.h"

namespace torch_mtia {

void FirstFailure::note(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (text_.empty()) text_ = text;
}

std::string FirstFailure::after(const char* what) const noexcept {
  try {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    return !lock || text_.empty() ? what : what + ("; its first failure: " + text_);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

std::string message_of(const std::exception& error) {
  const auto* const original = dynamic_cast<const c10::Error*>(&error);
  return original != nullptr ? original->what_without_backtrace() : error.what();
}

void WorkState::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = nullptr;
  state_ = State::kRunning;
  start_ = std::chrono::steady_clock::now();
}

void WorkState::fail() {
  std::string message = "an exception of no known type";
  try {
    throw;
  } catch (const std::exception& error) {
    message = message_of(error);
  } catch (...) {
  }
  const std::string text = c10::str(call.name, ", number ", call.sequence_number, " of its group, on rank ", call.rank,
                                    " of ", call.size, ": ", message);
  failures_->note(text);
  const auto error = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, text));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    state_ = State::kFailed;
  }
  std::rethrow_exception(error);
}

const char* WorkState::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  constexpr const char* kNames[] = {"queued", "running", "completed", "failed"};
  return kNames[static_cast<size_t>(state_)];
}

StreamWork::StreamWork(int rank, c10d::OpType type, const MTIAStream& stream, std::shared_ptr<WorkState> state,
                       std::vector<at::Tensor> outputs)
    : Work(rank, type),
      stream_(stream),
      is_captured_(MTIAGraph::of(stream) != nullptr),
      state_(std::move(state)),
      outputs_(std::move(outputs)) {
  end_.record(stream.core());
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{stream.unwrap().device()});
  const c10::StreamGuard guard(stream.unwrap());
  future_->markCompleted(at::IValue(outputs_));
}

void StreamWork::refuse_if_captured(const char* what) const {
  if (!is_captured_) return;
  constexpr const char* kReason =
      "the work runs at each replay, and not before. Call wait(), which the graph contains, and synchronize after a "
      "replay";
  MTIAGraph::refuse(stream_, what, kReason);
  TORCH_CHECK(false, what, " is not for work that was captured in a graph: ", kReason, ".");
}

bool StreamWork::isCompleted() {
  refuse_if_captured("Work.is_completed()");
  return core::program_queries(end_);
}

bool StreamWork::isSuccess() const {
  refuse_if_captured("Work.is_success()");
  return core::program_queries(end_) && state_->error() == nullptr;
}

std::exception_ptr StreamWork::exception() const {
  return state_->error();
}

int StreamWork::sourceRank() const {
  refuse_if_captured("The rank that a message came from");
  const core::BlockingWait wait(/*takes_time=*/true);
  core::program_waits_for(end_);
  return state_->source_rank;
}

void StreamWork::synchronize() {
  const MTIAStream current = MTIAStream::current(stream_.device());
  current.core().wait(end_);
  core::WorkInfo info{};
  info.name = "c10d::wait";
  const auto raise_error = [state = state_] {
    if (const auto error = state->error()) std::rethrow_exception(error);
  };
  current.core().launch(info, CollectiveWork{raise_error, CollectiveOperands()});
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout && timeout.count() > 0) {
    refuse_if_captured("Work.wait(timeout)");
    const core::BlockingWait wait(/*takes_time=*/true);
    const collectives::Deadline deadline(timeout);
    while (!core::program_queries(end_)) {
      TORCH_CHECK_WITH(DistBackendError, !deadline.is_over(), state_->call.name, " number ",
                       state_->call.sequence_number, " of rank ", rank_, " was not complete after ", timeout.count(),
                       " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  const bool is_barrier = opType_ == c10d::OpType::BARRIER && !is_captured_;
  if (is_barrier) {
    const core::BlockingWait wait(/*takes_time=*/true);
    core::program_waits_for(end_);
  }
  if (is_barrier || timeout != kNoTimeout) {
    if (const auto error = state_->error()) std::rethrow_exception(error);
  }
  synchronize();
  return true;
}

HostWork::HostWork(int rank, c10d::OpType type, std::shared_ptr<WorkState> state, std::vector<at::Tensor> outputs,
                   std::function<void()> call, Runs runs)
    : Work(rank, type),
      state_(std::move(state)),
      outputs_(std::move(outputs)),
      call_(std::move(call)),
      runs_(runs),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void HostWork::run() {
  const std::lock_guard<std::mutex> lock(running_);
  if (isCompleted()) return;
  try {
    state_->begin();
    try {
      call_();
    } catch (...) {
      state_->fail();
    }
    state_->end();
    future_->markCompleted(at::IValue(outputs_));
    finish();
  } catch (...) {
    future_->setError(std::current_exception());
    finish(std::current_exception());
  }
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  // The base class adds the timeout to the time.
  const auto end = collectives::Deadline(timeout).time;
  if (end == std::chrono::steady_clock::time_point::max()) timeout = kNoTimeout;
  if (runs_ == Runs::kAlsoInWait && timeout == kNoTimeout) run();
  return Work::wait(timeout);
}

}  // namespace torch_mtia
