// Collectives in streams of the device, by an engine that knows bytes only and blocks. Tensors of the CPU have threads
// in place of streams.
//
// Note [Collectives as work]
// Each call is an item of a communication stream of the group. The item calls the engine on the host view of the
// device's memory and waits there, so what blocks is a thread of the driver, and the host does not. The
// stream waits for what the caller's stream has been given before the call; Work::wait has a stream wait for the item.
// Collectives run in the order in which they were called, which is the order on which all ranks agree: those of one
// device in one stream, and those of several devices of this process after each other, by events. Ranks need not agree
// on devices: one may call barrier() on its first device and another one on the device that it trains on. So one engine
// serves all devices. With one for each, as NCCL has communicators, ranks would have to agree which devices belong
// together.
// Messages have no such order: an item that waited for a peer must not keep back the one that the peer waits for. So
// they take two items: one, in the stream kPosts, that leaves the message with the engine and returns, and one, in the
// stream kArrivals, that waits for it. They are left in the order of the calls, whatever the device, because a receiver
// tells messages with one tag apart by that order.
// The streams are the group's own: one that two groups shared would keep back what a peer of the other group waits for.
#pragma once

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../collectives/Engine.h"
#include "../device/MTIAStream.h"
#include "Collective.h"
#include "NetworkEngine.h"
#include "Work.h"

namespace torch_mtia {

class MTIAGraph;

// The stream that the last call of a kind was given to: of the calls that run now, and of those in each capture. A call
// in a capture is ordered after nothing outside of it.
class LastStreams {
 public:
  // The one before `stream`, which is the last one from now on. Not thread safe.
  std::optional<MTIAStream> exchange(const MTIAStream& stream);

 private:
  struct Captured {
    const MTIAGraph* graph;
    MTIAStream stream;
  };
  std::optional<MTIAStream> eager_;
  std::vector<Captured> captured_;
};

// An engine, and what its calls share. Stays as long as there is work, and who waits for this rank then raises.
class Channel {
 public:
  // `tensors`: the type of their device.
  Channel(std::shared_ptr<collectives::Engine> engine, std::string tensors, std::chrono::milliseconds timeout,
          std::shared_ptr<FirstFailure> failures);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() { abort("it has left the group"); }

  collectives::Engine& engine() const { return *engine_; }
  void abort(const char* why) const noexcept;
  // One collective at a time. Engines know them by their numbers.
  std::unique_lock<std::mutex> lock() { return std::unique_lock<std::mutex>(mutex_); }
  // At a timeout, the error names the collectives of `other`, a channel of the same group, in which ranks wait for this
  // one: a rank with a tensor of another type of device is there.
  void run(const std::vector<Step>& steps, std::chrono::milliseconds timeout, const Channel& other);

  std::atomic<std::chrono::milliseconds> timeout;

 private:
  const std::shared_ptr<collectives::Engine> engine_;
  const std::string tensors_;
  const std::shared_ptr<FirstFailure> failures_;
  std::mutex mutex_;
  uint64_t num_calls_ = 0;
};

class StreamBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

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

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return collective(c10d::OpType::BROADCAST, "c10d::broadcast", options.timeout, [&](Collective& call) {
      for (const at::Tensor& tensor : tensors) call.broadcast(tensor, options.rootRank);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return collective(c10d::OpType::ALLREDUCE_COALESCED, "c10d::allreduce_coalesced", options.timeout,
                      [&](Collective& call) {
                        call.set_operation(options.reduceOp, tensors);
                        for (const at::Tensor& tensor : tensors) call.all_reduce(tensor);
                      });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return collective(c10d::OpType::REDUCE, "c10d::reduce", options.timeout, [&](Collective& call) {
      call.set_operation(options.reduceOp, tensors);
      for (const at::Tensor& tensor : tensors) call.reduce(tensor, options.rootRank);
    });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return collective(c10d::OpType::ALLGATHER, "c10d::allgather", options.timeout, [&](Collective& call) {
      call.check_lists(outputs, inputs);
      for (size_t i = 0; i < inputs.size(); ++i) call.all_gather("all_gather", outputs[i], inputs[i]);
    });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return collective(c10d::OpType::_ALLGATHER_BASE, "c10d::_allgather_base", options.timeout,
                      [&](Collective& call) { call.all_gather(output, input); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return collective(c10d::OpType::ALLGATHER_COALESCED, "c10d::allgather_coalesced", options.timeout,
                      [&](Collective& call) {
                        for (size_t i = 0; i < inputs.size(); ++i) {
                          Tensors of_input;  // the lists are those of the ranks
                          for (const Tensors& of_rank : outputs) of_input.push_back(of_rank.at(i));
                          call.all_gather("all_gather_coalesced", of_input, inputs[i]);
                        }
                      });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return collective(c10d::OpType::COALESCED, "c10d::allgather_into_tensor_coalesced", options.timeout,
                      [&](Collective& call) {
                        for (size_t i = 0; i < inputs.size(); ++i) call.all_gather(outputs.at(i), inputs[i]);
                      });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return collective(c10d::OpType::GATHER, "c10d::gather", options.timeout,
                      [&](Collective& call) { call.gather(outputs, inputs, options.rootRank); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return collective(c10d::OpType::SCATTER, "c10d::scatter", options.timeout,
                      [&](Collective& call) { call.scatter(outputs, inputs, options.rootRank); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return collective(c10d::OpType::REDUCE_SCATTER, "c10d::reduce_scatter", options.timeout, [&](Collective& call) {
      call.check_lists(inputs, outputs);
      call.set_operation(options.reduceOp, outputs);
      for (size_t i = 0; i < outputs.size(); ++i) call.reduce_scatter(outputs[i], inputs[i]);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return collective(c10d::OpType::_REDUCE_SCATTER_BASE, "c10d::_reduce_scatter_base", options.timeout,
                      [&](Collective& call) {
                        call.set_operation(options.reduceOp, {output});
                        call.reduce_scatter(output, input);
                      });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return collective(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "c10d::reduce_scatter_tensor_coalesced",
                      options.timeout, [&](Collective& call) {
                        call.set_operation(options.reduceOp, outputs);
                        for (size_t i = 0; i < outputs.size(); ++i) call.reduce_scatter(outputs[i], inputs.at(i));
                      });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return collective(c10d::OpType::ALLTOALL_BASE, "c10d::alltoall_base", options.timeout,
                      [&](Collective& call) { call.all_to_all(output, output_sizes, input, input_sizes); });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return collective(c10d::OpType::ALLTOALL, "c10d::alltoall", options.timeout,
                      [&](Collective& call) { call.all_to_all(outputs, inputs); });
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return message(c10d::OpType::SEND, "c10d::send", tensors, destination, tag);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return message(c10d::OpType::RECV, "c10d::recv", tensors, source, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return message(c10d::OpType::RECVANYSOURCE, "c10d::recv_any_source", tensors, collectives::kAnyRank, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  // Over the store, with no work of the device: on each rank, an error that names those that have not called it in
  // time.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // In between, calls of this group are as always; the end is one work for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // The last calls, oldest first.
  std::vector<std::shared_ptr<const WorkState>> records();

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

  // Calls between startCoalescing and endCoalescing.
  struct Coalesced {
    std::optional<c10::Device> device;
    std::vector<std::shared_ptr<WorkState>> states;
    std::vector<MTIAStream> streams;  // of the calls
    std::vector<WorkPtr> works;       // of CPU tensors
  };

  MTIAStream stream_of(c10::DeviceIndex device, Use use);
  // `stream` waits for the last one, on another device, that was given a collective, or a message. With order_mutex_.
  static void follow(LastStreams& last, const MTIAStream& stream);
  void check_process() const;
  // Notes the call, and gives it the next number.
  std::shared_ptr<WorkState> next_state(const char* name, const std::vector<Argument>& arguments = {});
  WorkPtr work_of(c10d::OpType type, const MTIAStream& stream, std::shared_ptr<WorkState> state, Tensors outputs);
  // Of CPU tensors.
  WorkPtr host_work_of(c10d::OpType type, std::shared_ptr<WorkState> state, Tensors outputs, std::function<void()> call,
                       bool is_message);
  // Null: calls are not coalesced now. Throws c10::ValueError if they are on another device, and gives that up.
  Coalesced* coalesced_on(c10::Device device);
  void check_coalesced(c10::Device device);  // before a call is launched
  WorkPtr allreduce_sparse_coo(const at::Tensor& tensor, const c10d::AllreduceOptions& options);
  // Both give their work the `name`, a literal. `describe` raises what one rank can know to be wrong.
  WorkPtr collective(c10d::OpType type, const char* name, std::chrono::milliseconds timeout,
                     const std::function<void(Collective&)>& describe,
                     std::optional<c10::Device> device = std::nullopt);
  WorkPtr message(c10d::OpType type, const char* name, const Tensors& tensors, int peer, int tag);
  // What the function raises is a failure of the group, too: other ranks may wait for the call.
  WorkPtr noting_failures(const char* name, const std::function<WorkPtr()>& function);

  const EngineMaker make_engine_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<FirstFailure> failures_ = std::make_shared<FirstFailure>();
  const std::shared_ptr<Channel> device_;
  // Of CPU tensors, whose order nobody compares with that of the others.
  const std::shared_ptr<Channel> host_;
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
  std::deque<std::shared_ptr<WorkState>> records_;
  std::optional<Coalesced> coalesced_;
  HostQueue host_collectives_;
  HostQueue host_messages_;
};

}  // namespace torch_mtia
