// The handle of a collective or a message that runs in a stream: what ProcessGroupNCCL::WorkNCCL is for CUDA.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
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

// How a run of the work went. Shared by the handle and the work item, which refer to nothing else of each other: no
// tensor of the device may die with the item.
class Outcome {
 public:
  explicit Outcome(CallRecord call) : call(std::move(call)) {}

  const CallRecord call;

  void begin();  // of a run: a graph runs its items again
  void end();
  // With the exception that is being handled. Raises it with what the call is.
  [[noreturn]] void fail();
  void set_source_rank(int rank);
  std::exception_ptr error() const;
  int source_rank() const;
  // "queued", "running", "completed" or "failed".
  const char* state() const;
  // Whether it is running, for at least this time.
  bool has_run_for(std::chrono::seconds time) const;

 private:
  mutable std::mutex mutex_;
  enum class State { kQueued, kRunning, kCompleted, kFailed } state_ = State::kQueued;
  std::chrono::steady_clock::time_point start_;
  std::exception_ptr error_;
  int source_rank_ = -1;
};

// Tensors need not be kept by the handle: the streams that use their memory are recorded when the work is launched.
class StreamWork final : public c10d::Work {
 public:
  // The work that `stream` was given last, and whatever is before it.
  StreamWork(int rank, c10d::OpType type, const MTIAStream& stream, std::shared_ptr<Outcome> outcome,
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
  uint64_t getSequencenumber() const override { return outcome_->call.sequence_number; }

 private:
  // Invalidates the graph of a capture that is under way.
  void refuse_if_captured(const char* what) const;

  core::Event end_{/*enable_timing=*/false};
  const MTIAStream stream_;
  const bool is_captured_;
  const std::shared_ptr<Outcome> outcome_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_mtia
