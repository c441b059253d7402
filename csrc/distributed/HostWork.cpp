#include "HostWork.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <chrono>
#include <exception>
#include <utility>

#include "../collectives/Deadline.h"

namespace torch_mtia {

HostQueue::~HostQueue() {
  if (getpid() != process_id_) {
    state_.release();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_over = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void HostQueue::push(std::function<void()> call) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->calls.push_back(std::move(call));
    if (!state_->thread.joinable()) state_->thread = std::thread([state = state_.get()] { state->run(); });
  }
  state_->changed.notify_all();
}

void HostQueue::State::run() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return is_over || !calls.empty(); });
    if (calls.empty()) return;
    {
      const std::function<void()> call = std::move(calls.front());
      calls.pop_front();
      lock.unlock();
      call();
    }
    lock.lock();
  }
}

HostWork::HostWork(int rank, c10d::OpType type, std::shared_ptr<Outcome> outcome, std::vector<at::Tensor> outputs,
                   std::function<void()> call, Runs runs)
    : Work(rank, type),
      outcome_(std::move(outcome)),
      outputs_(std::move(outputs)),
      call_(std::move(call)),
      runs_(runs),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void HostWork::run() {
  const std::lock_guard<std::mutex> lock(running_);
  if (isCompleted()) return;
  try {
    outcome_->begin();
    try {
      call_();
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
  // The base class adds the timeout to the time.
  const auto end = collectives::Deadline(timeout).time;
  if (end == std::chrono::steady_clock::time_point::max()) timeout = kNoTimeout;
  if (runs_ == Runs::kAlsoInWait && timeout == kNoTimeout) run();
  return Work::wait(timeout);
}

}  // namespace torch_mtia
