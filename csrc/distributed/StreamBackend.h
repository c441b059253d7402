// Collectives in streams of the device, by an engine that knows only tensors of the CPU and blocks. Tensors of the CPU
// have threads in place of streams.
//
// Note [Collectives as work]
// Each call is an item of a communication stream of the group. The item calls the engine with CPU tensors over the host
// view of the device's memory and waits there, so what blocks is a thread of the driver, and the host does not. The
// stream waits for what the caller's stream has been given before the call; Work::wait has a stream wait for the item.
// Collectives run in the order in which they were called, which is the order on which all ranks agree: those of one
// device in one stream, and those of several devices of this process after each other, by events. Ranks need not agree
// on devices: one may call barrier() on its first device and another one on the device that it trains on.
// Messages have no such order: an item that waited for a peer must not keep back the one that the peer waits for. So
// they take two items: one, in the stream kPosts, that leaves the message with the engine and returns, and one, in the
// stream kArrivals, that waits for it. They are left in the order of the calls, whatever the device, because a receiver
// tells messages with one tag apart by that order.
// The streams are the group's own: one that two groups shared would keep back what a peer of the other group waits for.
#pragma once

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../device/MTIAStream.h"
#include "CollectiveWork.h"
#include "Engine.h"
#include "HostWork.h"
#include "LastStreams.h"
#include "StreamWork.h"

namespace torch_mtia {

class Staging;

class StreamBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Nobody else may call the engine: its ranks agree on the order of the calls.
  StreamBackend(EngineMaker make_engine, c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name,
                std::chrono::milliseconds timeout);
  StreamBackend(const StreamBackend&) = delete;
  StreamBackend& operator=(const StreamBackend&) = delete;
  ~StreamBackend() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  // A group of `ranks`, which are ranks of this one; nothing for those that are not among them, but all have to call.
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
  // Over the store, with no work of the device: on each rank, an error that names those that have not called it in
  // time.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // In between, calls of this group are as always; the end is one work for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // The last calls, oldest first.
  std::vector<std::shared_ptr<const Outcome>> records();

  // Numbers count the calls.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  // What is queued and not done raises, and so do all later calls.
  void abort() override;
  // Waits for what is queued, but aborts what waits for a peer for seconds.
  void shutdown() override;

 private:
  // What the streams of a device are for. kEnds is for ends of coalesced calls: neither collectives nor messages wait
  // for the others.
  enum Use : size_t { kCollectives, kPosts, kArrivals, kEnds, kNumUses };
  using Streams = std::array<std::optional<MTIAStream>, kNumUses>;  // made when they are needed
  using Call = std::function<void(c10d::Backend&)>;                 // waits for the engine
  using Post = std::function<WorkPtr(c10d::Backend&)>;              // does not
  // A function of the engine. The first of its arguments is what it writes.
  template <typename... Parameters>
  using Function = WorkPtr (c10d::Backend::*)(Parameters...);

  // Calls between startCoalescing and endCoalescing.
  struct Coalesced {
    std::optional<c10::Device> device;
    std::vector<std::shared_ptr<Outcome>> outcomes;
    std::vector<MTIAStream> streams;  // of the calls
    std::vector<WorkPtr> works;       // of CPU tensors
  };

  MTIAStream stream_of(c10::DeviceIndex device, Use use);
  // `stream` waits for the last one, on another device, that was given a collective, or a message. With order_mutex_.
  static void follow(LastStreams& last, const MTIAStream& stream);
  void check_process() const;
  void check_peer(const char* name, int rank) const;
  // Notes the call, and gives it the next number.
  std::shared_ptr<Outcome> next_outcome(const char* name, const Tensors& tensors);
  WorkPtr work_of(c10d::OpType type, const MTIAStream& stream, std::shared_ptr<Outcome> outcome, Tensors outputs);
  // Of CPU tensors.
  WorkPtr host_work_of(c10d::OpType type, std::shared_ptr<Outcome> outcome, Tensors outputs, std::function<void()> call,
                       bool is_message);
  // Null: calls are not coalesced now. Throws c10::ValueError if they are on another device, and gives that up.
  Coalesced* coalesced_on(c10::Device device);
  void check_coalesced(c10::Device device);  // before a call is launched
  WorkPtr allreduce_sparse_coo(const at::Tensor& tensor, const c10d::AllreduceOptions& options);
  // Both give their work the `name`, a literal.
  WorkPtr collective(c10d::OpType type, const char* name, c10::Device device, const Tensors& used, Tensors outputs,
                     Call call, const Staging& staging, CollectiveOperands operands);
  WorkPtr message(c10d::OpType type, const char* name, const Tensors& tensors, Post post, const Staging& staging);
  template <typename... Parameters, typename... Arguments>
  WorkPtr collective(c10d::OpType type, const char* name, Function<Parameters...> function,
                     const Arguments&... arguments);
  template <typename... Parameters, typename... Arguments>
  WorkPtr reduction(c10d::OpType type, const char* name, Function<Parameters...> function,
                    const c10d::ReduceOp& operation, const Arguments&... arguments);

  const EngineMaker make_engine_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<c10d::Backend> engine_;
  // Of CPU tensors, whose order nobody compares with that of the others.
  const c10::intrusive_ptr<c10d::Backend> host_engine_;
  const EngineDtypes engine_dtypes_;
  const std::shared_ptr<std::mutex> engine_mutex_ = std::make_shared<std::mutex>();  // one collective at a time
  const std::string name_;
  const c10::intrusive_ptr<Options> options_;
  const pid_t process_id_ = getpid();
  std::mutex order_mutex_;  // held while a call is put into its stream; guards:
  LastStreams last_collective_;
  LastStreams last_post_;
  std::mutex mutex_;  // guards what is below
  std::map<c10::DeviceIndex, Streams> streams_;
  uint64_t number_ = 0;
  std::map<std::vector<int>, uint64_t> num_splits_;
  uint64_t num_monitored_barriers_ = 0;
  std::deque<std::shared_ptr<Outcome>> records_;
  std::optional<Coalesced> coalesced_;
  HostQueue host_collectives_;
  HostQueue host_messages_;
};

}  // namespace torch_mtia
