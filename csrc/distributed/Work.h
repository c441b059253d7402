// The handles of collectives and messages: of those that run in a stream, what ProcessGroupNCCL::WorkNCCL is for CUDA,
// and of those of CPU tensors, which return at once, too.
#pragma once

#include <c10/core/thread_pool.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../core/Event.h"
#include "../device/MTIAStream.h"

namespace torch_mtia {

// What a call asked for.
struct CallRecord {
  const char* name;
  int rank;
  int size;  // of the group
  uint64_t sequence_number;
  std::vector<std::vector<int64_t>> sizes;  // of its tensors
  std::string dtype;                        // of the first
};

// What first went wrong in a group on this rank. Ranks that wait for one that leaves raise it.
class FirstFailure {
 public:
  void note(const std::string& text);
  // "what", or "what; its first failure: ...". Never waits: destructors call it, in forked children, too.
  std::string after(const char* what) const noexcept;

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

std::string message_of(const std::exception& error);

// How a run of the work went. Shared by the handle and the work item, which refer to nothing else of each other: no
// tensor of the device may die with the item.
class WorkState {
 public:
  WorkState(CallRecord call, std::shared_ptr<FirstFailure> failures)
      : call(std::move(call)), failures_(std::move(failures)) {}

  const CallRecord call;

  void begin();  // of a run: a graph runs its items again
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kCompleted;
  }
  // With the exception that is being handled. Raises it with what the call is.
  [[noreturn]] void fail();
  std::exception_ptr error() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }
  const char* state() const;  // "queued", "running", "completed" or "failed"
  // Whether it is running, for at least this time.
  bool has_run_for(std::chrono::seconds time) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return state_ == State::kRunning && std::chrono::steady_clock::now() - start_ >= time;
  }

  std::atomic<int> source_rank{-1};

 private:
  const std::shared_ptr<FirstFailure> failures_;
  mutable std::mutex mutex_;
  enum class State { kQueued, kRunning, kCompleted, kFailed } state_ = State::kQueued;
  std::chrono::steady_clock::time_point start_;
  std::exception_ptr error_;
};

// The handle need not own the tensors: the streams that use their memory are recorded when the work is launched.
class StreamWork final : public c10d::Work {
 public:
  // The work that `stream` was given last, and whatever is before it.
  StreamWork(int rank, c10d::OpType type, const MTIAStream& stream, std::shared_ptr<WorkState> state,
             std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Blocks, as only the run tells.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  // The current stream waits, and is given what the work raised. Does not block, but for a barrier.
  void synchronize() override;
  // With a timeout, blocks. Raises DistBackendError when it is over.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Work that is captured in a graph has no state of its own: what asks for one raises.
  void blockCurrentStream() override { synchronize(); }
  // Complete from the start, with the event of the work: who waits for it does so by stream, too.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return state_->call.sequence_number; }

 private:
  // Invalidates the graph of a capture that is under way.
  void refuse_if_captured(const char* what) const;

  core::Event end_{/*enable_timing=*/false};
  const MTIAStream stream_;
  const bool is_captured_;
  const std::shared_ptr<WorkState> state_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// What streams do for the device: calls, one after the other, in a thread from the first call on.
class HostQueue {
 public:
  HostQueue() = default;
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  // Returns when all calls have been made; in a forked child, which has not the thread, at once.
  ~HostQueue() {
    if (getpid() != process_id_) {
      (void)thread_.release();  // it may be locked here, and its end would wait for the thread
    } else if (thread_ != nullptr) {
      thread_->waitWorkComplete();
    }
  }

  void push(std::function<void()> call) {
    std::call_once(start_, [this] { thread_ = std::make_unique<c10::ThreadPool>(1); });
    thread_->run(std::move(call));
  }

 private:
  const pid_t process_id_ = getpid();
  std::once_flag start_;
  std::unique_ptr<c10::ThreadPool> thread_;
};

class HostWork final : public c10d::Work {
 public:
  // Where does a call run: in a queue, or also in the thread that waits for it, if that is earlier.
  enum class Runs { kQueued, kAlsoInWait };

  HostWork(int rank, c10d::OpType type, std::shared_ptr<WorkState> state, std::vector<at::Tensor> outputs,
           std::function<void()> call, Runs runs);

  // Makes the call, unless that is done, and completes with what it raises.
  void run();

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return state_->source_rank; }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return state_->call.sequence_number; }

 private:
  const std::shared_ptr<WorkState> state_;
  const std::vector<at::Tensor> outputs_;
  const std::function<void()> call_;
  const Runs runs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex running_;
};

}  // namespace torch_mtia
