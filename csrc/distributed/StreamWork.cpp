#include "StreamWork.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <thread>
#include <utility>

#include "../collectives/Deadline.h"
#include "../core/Waits.h"
#include "../device/MTIAGraph.h"
#include "CollectiveWork.h"

namespace torch_mtia {

void Outcome::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = nullptr;
  state_ = State::kRunning;
  start_ = std::chrono::steady_clock::now();
}

void Outcome::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kCompleted;
}

void Outcome::fail() {
  const auto explained = [&](const char* message) {
    return std::make_exception_ptr(C10_BUILD_ERROR(
        DistBackendError, c10::str(call.name, ", number ", call.sequence_number, " of its group, on rank ", call.rank,
                                   " of ", call.size, ": ", message)));
  };
  std::exception_ptr error;
  try {
    throw;
  } catch (const c10::Error& original) {
    error = explained(original.what_without_backtrace());
  } catch (const std::exception& original) {
    error = explained(original.what());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    state_ = State::kFailed;
  }
  std::rethrow_exception(error);
}

void Outcome::set_source_rank(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  source_rank_ = rank;
}

std::exception_ptr Outcome::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

int Outcome::source_rank() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return source_rank_;
}

const char* Outcome::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  constexpr const char* kNames[] = {"queued", "running", "completed", "failed"};
  return kNames[static_cast<size_t>(state_)];
}

bool Outcome::has_run_for(std::chrono::seconds time) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kRunning && std::chrono::steady_clock::now() - start_ >= time;
}

StreamWork::StreamWork(int rank, c10d::OpType type, const MTIAStream& stream, std::shared_ptr<Outcome> outcome,
                       std::vector<at::Tensor> outputs)
    : Work(rank, type),
      stream_(stream),
      is_captured_(MTIAGraph::of(stream) != nullptr),
      outcome_(std::move(outcome)),
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
  return core::program_queries(end_) && outcome_->error() == nullptr;
}

std::exception_ptr StreamWork::exception() const {
  return outcome_->error();
}

int StreamWork::sourceRank() const {
  refuse_if_captured("The rank that a message came from");
  const core::BlockingWait wait(/*takes_time=*/true);
  core::program_waits_for(end_);
  return outcome_->source_rank();
}

void StreamWork::synchronize() {
  const MTIAStream current = MTIAStream::current(stream_.device());
  current.core().wait(end_);
  core::WorkInfo info{};
  info.name = "c10d::wait";
  info.flags = MTIA_WORK_CAPTURABLE;  // behind the event, never on the caller
  const auto raise_error = [outcome = outcome_] {
    if (const auto error = outcome->error()) std::rethrow_exception(error);
  };
  current.core().launch(info, CollectiveWork{raise_error, CollectiveOperands()});
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout && timeout.count() > 0) {
    refuse_if_captured("Work.wait(timeout)");
    const core::BlockingWait wait(/*takes_time=*/true);
    const collectives::Deadline deadline(timeout);
    while (!core::program_queries(end_)) {
      TORCH_CHECK_WITH(DistBackendError, !deadline.is_over(), outcome_->call.name, " number ",
                       outcome_->call.sequence_number, " of rank ", rank_, " was not complete after ", timeout.count(),
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
    if (const auto error = outcome_->error()) std::rethrow_exception(error);
  }
  synchronize();
  return true;
}

}  // namespace torch_mtia
