// An engine of collectives for ranks that are all on one machine: CPU tensors in, by csrc/collectives. Calls block,
// those of messages until wait().
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "../collectives/Communicator.h"
#include "../collectives/Messages.h"

namespace torch_mtia {

class SharedMemoryEngine final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // All ranks of a group make it together, in room() of the team's memory.
  SharedMemoryEngine(std::shared_ptr<const collectives::Team> team, std::chrono::milliseconds timeout);
  SharedMemoryEngine(const SharedMemoryEngine&) = delete;
  SharedMemoryEngine& operator=(const SharedMemoryEngine&) = delete;
  // A peer that waits for this rank raises.
  ~SharedMemoryEngine() override;

  static size_t room(int size);
  // Whether reductions take the elements as they are. All others do.
  static bool reduces(c10d::ReduceOp::RedOpType operation, c10::ScalarType dtype);

  const std::string getBackendName() const override { return "shared memory"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void abort() override;
  void shutdown() override { abort(); }

 private:
  std::chrono::milliseconds timeout_of(const auto& options) const {
    return options.timeout == c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
  }
  collectives::Signature signature_of(const char* name, const at::Tensor& tensor, int64_t root = -1) const;
  void gather_all(const char* name, const Tensors& outputs, const at::Tensor& input, std::chrono::milliseconds timeout);
  void reduce_parts(const char* name, const at::Tensor& output, const Tensors& inputs,
                    const c10d::ReduceScatterOptions& options);
  void exchange(const char* name, int root, const Tensors& outputs, const Tensors& inputs,
                std::chrono::milliseconds timeout);

  const std::shared_ptr<const collectives::Team> team_;
  collectives::Communicator communicator_;
  const std::shared_ptr<collectives::Messages> messages_;
  std::atomic<std::chrono::milliseconds> timeout_;
  // Of collectives, one of which is called at a time. Each counts before anything in it can fail.
  uint64_t num_calls_ = 0;
};

}  // namespace torch_mtia
