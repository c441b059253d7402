// Collectives in streams of the device, by an engine that knows only tensors of the CPU and blocks: PyTorch's own
// ProcessGroupGloo.
//
// Note [Collectives as work]
// Each call is an item of a communication stream of the group. The item calls the engine with CPU tensors over the host
// view of the device's memory and waits there, so what blocks is a thread of the driver, and the host does not. The
// stream waits for what the caller's stream has been given before the call; Work::wait has a stream wait for the item.
// Collectives run in the order in which they were called, which is the order on which all ranks agree, in one stream.
// Messages have no such order: an item that waited for a peer must not keep back the one that the peer waits for. So
// they take two items: one, in the stream `posts`, that leaves the message with the engine and returns, and one, in the
// stream `arrivals`, that waits for it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../device/MTIAStream.h"
#include "StreamWork.h"

namespace torch_mtia {

class StreamBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Nobody else may call the engine: its ranks agree on the order of the calls.
  StreamBackend(c10::intrusive_ptr<c10d::Backend> engine, std::string name, std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  // Null on ranks that are not among `ranks`.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
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

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  // A work for all calls since then.
  WorkPtr endCoalescing() override;

  // Numbers count the calls.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  void abort() override { engine_->abort(); }
  void shutdown() override { engine_->shutdown(); }

 private:
  struct Streams {
    MTIAStream collectives;
    MTIAStream posts;
    MTIAStream arrivals;
    MTIAStream ends;  // of coalesced calls: neither collectives nor messages wait for the others
  };
  // What was called since startCoalescing.
  struct Coalesced {
    c10::DeviceIndex device;
    std::vector<std::shared_ptr<Outcome>> outcomes;
  };
  using Call = std::function<void(c10d::Backend&)>;     // waits for the engine
  using Post = std::function<WorkPtr(c10d::Backend&)>;  // does not
  // A function of the engine. The first of its arguments is what it writes.
  template <typename... Parameters>
  using Function = WorkPtr (c10d::Backend::*)(Parameters...);

  const Streams& streams_of(c10::DeviceIndex device);
  std::shared_ptr<Outcome> new_outcome(const char* name, c10::DeviceIndex device);
  // Both give their work the `name`, a literal.
  WorkPtr collective(c10d::OpType type, const char* name, c10::Device device, const Tensors& used, Tensors outputs,
                     Call call);
  WorkPtr message(c10d::OpType type, const char* name, const Tensors& tensors, Post post);
  template <typename... Parameters, typename... Arguments>
  WorkPtr collective(c10d::OpType type, const char* name, Function<Parameters...> function,
                     const Arguments&... arguments);
  template <typename... Parameters, typename... Arguments>
  WorkPtr reduction(c10d::OpType type, const char* name, Function<Parameters...> function,
                    const c10d::ReduceOp& operation, const Arguments&... arguments);

  const c10::intrusive_ptr<c10d::Backend> engine_;
  const std::shared_ptr<std::mutex> engine_mutex_ = std::make_shared<std::mutex>();  // one collective at a time
  const std::string name_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;  // guards what is below
  std::map<c10::DeviceIndex, Streams> streams_;
  uint64_t number_ = 0;
  std::optional<Coalesced> coalesced_;
};

}  // namespace torch_mtia
