// An engine of collectives for ranks on several machines: gloo between the machines, and shared memory within each.
// What is reduced or given to all goes over the network once for each machine, by its first rank; what has a receiver
// of its own goes to it through gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <vector>

namespace torch_mtia {

class NetworkEngine final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // `machines` has for each rank the first one that is on its machine. `between` is gloo among those, in their order,
  // and is none on all other ranks; `all` is gloo among all ranks.
  NetworkEngine(int rank, std::vector<int> machines, BackendPtr within, BackendPtr between, BackendPtr all);

  const std::string getBackendName() const override { return "network"; }
  void setTimeout(std::chrono::milliseconds timeout) override;

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
  void shutdown() override;

 private:
  bool is_first() const { return between_ != nullptr; }
  const std::vector<int>& members() const { return members_of_[machine_]; }
  void broadcast_within(const at::Tensor& tensor, int root, std::chrono::milliseconds timeout);
  // Of [ranks, elements], the sum of the row that is this rank's.
  at::Tensor reduced_row(const at::Tensor& rows, const c10d::ReduceScatterOptions& options);

  std::vector<std::vector<int>> members_of_;  // the ranks of each machine, ascending
  std::vector<int> machine_of_;               // for each rank
  int machine_;
  int index_ = 0;  // among the members
  const BackendPtr within_;
  const BackendPtr between_;
  const BackendPtr all_;
};

}  // namespace torch_mtia
