// The handle of a collective or a message that runs in a stream: what ProcessGroupNCCL::WorkNCCL is for CUDA.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "../core/Event.h"
#include "../device/MTIAStream.h"

namespace torch_mtia {

// How a run of the work went. Shared by the handle and the work item, which refer to nothing else of each other: no
// tensor of the device may die with the item.
class Outcome {
 public:
  Outcome(const char* name, int rank, int size, uint64_t number)
      : name(name), rank_(rank), size_(size), number_(number) {}

  const char* const name;
  uint64_t number() const { return number_; }  // of the call in its group

  void begin();  // of a run: a graph runs its items again
  // With the exception that is being handled. Raises it with what the work is.
  [[noreturn]] void fail();
  void set_source_rank(int rank);
  std::exception_ptr error() const;
  int source_rank() const;

 private:
  const int rank_;
  const int size_;
  const uint64_t number_;
  mutable std::mutex mutex_;
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
  void blockCurrentStream() override { synchronize(); }
  // Complete from the start, with the event of the work: who waits for it does so by stream, too.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return outcome_->number(); }

 private:
  core::Event end_{/*enable_timing=*/false};
  const c10::DeviceIndex device_;
  const std::shared_ptr<Outcome> outcome_;
  const std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_mtia
