#include "HostWork.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <exception>
#include <utility>

namespace torch_mtia {

HostQueue::~HostQueue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostQueue::push(std::function<void()> call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void HostQueue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !calls_.empty(); });
    if (calls_.empty()) return;
    {
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
    lock.lock();
  }
}

HostWork::HostWork(int rank, c10d::OpType type, std::shared_ptr<Outcome> outcome, std::vector<at::Tensor> outputs,
                   c10::intrusive_ptr<c10d::Work> inner)
    : Work(rank, type),
      outcome_(std::move(outcome)),
      outputs_(std::move(outputs)),
      inner_(std::move(inner)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void HostWork::run(const std::function<void()>& call) {
  const std::lock_guard<std::timed_mutex> lock(running_);
  if (isCompleted()) return;
  try {
    outcome_->begin();
    try {
      call();
    } catch (...) {
      outcome_->fail();
    }
    outcome_->end();
    future_->markCompleted(at::IValue(outputs_));
    finish();
  } catch (...) {
    future_->setError(std::current_exception());
    finish(std::current_exception());
  }
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  if (inner_) {
    // Another thread may be in the middle of it.
    const bool is_free = timeout == kNoTimeout || running_.try_lock_for(timeout);
    TORCH_CHECK_WITH(DistBackendError, is_free, outcome_->call.name, " was not complete after ", timeout.count(), " ms");
    if (timeout != kNoTimeout) running_.unlock();
    run([&] {
      inner_->wait(timeout);
      if (opType_ == c10d::OpType::RECVANYSOURCE) outcome_->set_source_rank(inner_->sourceRank());
    });
  }
  return Work::wait(timeout);
}

}  // namespace torch_mtia
