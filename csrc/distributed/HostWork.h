// Collectives and messages of CPU tensors: as those of the device, they return at once. The thread of a HostQueue does
// what streams do for the device.
#pragma once

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "StreamWork.h"

namespace torch_mtia {

// Calls, one after the other.
class HostQueue {
 public:
  HostQueue() = default;
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  // Returns when all calls have been made; in a forked child, which has not the thread, at once.
  ~HostQueue();

  void push(std::function<void()> call);

 private:
  struct State {
    void run();

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> calls;
    bool is_over = false;
    std::thread thread;  // from the first call on
  };

  const pid_t process_id_ = getpid();
  // Leaked in a forked child: it may be locked there, and its end would wait for the thread.
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

class HostWork final : public c10d::Work {
 public:
  // Where does a call run: in a queue, or also in the thread that waits for it, if that is earlier.
  enum class Runs { kQueued, kAlsoInWait };

  HostWork(int rank, c10d::OpType type, std::shared_ptr<Outcome> outcome, std::vector<at::Tensor> outputs,
           std::function<void()> call, Runs runs);

  // Makes the call, unless that is done, and completes with what it raises.
  void run();

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return outcome_->source_rank(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return outcome_->call.sequence_number; }

 private:
  const std::shared_ptr<Outcome> outcome_;
  const std::vector<at::Tensor> outputs_;
  const std::function<void()> call_;
  const Runs runs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex running_;
};

}  // namespace torch_mtia
