#include "StreamBackend.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "../core/Event.h"
#include "../core/WorkItem.h"
#include "../device/MTIAFunctions.h"
#include "EngineTensor.h"

namespace torch_mtia {
namespace {

// Literals, because work items refer to their names.
const char* name_of(c10d::OpType type) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return "c10d::broadcast";
    case OpType::ALLREDUCE:
      return "c10d::allreduce";
    case OpType::ALLREDUCE_COALESCED:
      return "c10d::allreduce_coalesced";
    case OpType::REDUCE:
      return "c10d::reduce";
    case OpType::ALLGATHER:
      return "c10d::allgather";
    case OpType::_ALLGATHER_BASE:
      return "c10d::_allgather_base";
    case OpType::ALLGATHER_COALESCED:
      return "c10d::allgather_coalesced";
    case OpType::GATHER:
      return "c10d::gather";
    case OpType::SCATTER:
      return "c10d::scatter";
    case OpType::REDUCE_SCATTER:
      return "c10d::reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "c10d::_reduce_scatter_base";
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return "c10d::reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL_BASE:
      return "c10d::alltoall_base";
    case OpType::ALLTOALL:
      return "c10d::alltoall";
    case OpType::SEND:
      return "c10d::send";
    case OpType::RECV:
      return "c10d::recv";
    case OpType::RECVANYSOURCE:
      return "c10d::recv_any_source";
    case OpType::BARRIER:
      return "c10d::barrier";
    default:
      return "c10d::coalesced";
  }
}

using Tensors = StreamBackend::Tensors;

Tensors flatten(const std::vector<Tensors>& lists) {
  Tensors result;
  for (const Tensors& tensors : lists) result.insert(result.end(), tensors.begin(), tensors.end());
  return result;
}

Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

c10::Device device_of(const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "a collective needs a tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), "the tensors of a collective are on one device, got ",
                      tensors[0].device(), " and ", tensor.device());
  }
  return tensors[0].device();
}

void check_reduction(const c10d::ReduceOp& operation) {
  TORCH_CHECK_NOT_IMPLEMENTED(operation.op_ != c10d::ReduceOp::PREMUL_SUM,
                              "PREMUL_SUM is not supported: multiply the tensor, and use SUM");
}

void order(const MTIAStream& first, const MTIAStream& second) {
  core::Event event(/*enable_timing=*/false);
  event.record(first.core());
  second.core().wait(event);
}

// `function` raises what is kept in the outcome, too, for those who wait for the work in other streams.
template <typename Function>
void launch(const MTIAStream& stream, const char* name, std::shared_ptr<Outcome> outcome, Function function) {
  core::WorkInfo info{};
  info.name = name;
  info.flags = MTIA_WORK_CAPTURABLE;  // never on the caller: it waits for peers
  stream.core().launch(info, [outcome = std::move(outcome), function = std::move(function)](const mtia_work_context&) {
    try {
      function(*outcome);
    } catch (...) {
      outcome->fail(std::current_exception());
      throw;
    }
  });
}

}  // namespace

StreamBackend::StreamBackend(c10::intrusive_ptr<c10d::Backend> engine, std::string name,
                             std::chrono::milliseconds timeout)
    : Backend(engine->getRank(), engine->getSize()),
      engine_(std::move(engine)),
      name_(std::move(name)),
      options_(c10::make_intrusive<Options>(name_, timeout)) {}

void StreamBackend::setTimeout(std::chrono::milliseconds timeout) {
  engine_->setTimeout(timeout);
  options_->timeout = timeout;
}

const StreamBackend::Streams& StreamBackend::streams_of(c10::DeviceIndex device) {
  ensure_initialized();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(device);
  if (found != streams_.end()) return found->second;
  const auto stream = [device] { return MTIAStream::from_pool(device, /*priority=*/-1); };
  return streams_.emplace(device, Streams{stream(), stream(), stream()}).first->second;
}

uint64_t StreamBackend::next_number() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ++number_;
}

uint64_t StreamBackend::getSequenceNumberForGroup() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

StreamBackend::WorkPtr StreamBackend::collective(c10d::OpType type, c10::Device device, const Tensors& used,
                                                 Tensors outputs, Call call) {
  const MTIAStream stream = streams_of(device.index()).collectives;
  for (const at::Tensor& tensor : used) tensor.record_stream(stream.unwrap());
  order(MTIAStream::current(device.index()), stream);
  auto outcome = std::make_shared<Outcome>(name_of(type));
  launch(stream, name_of(type), outcome,
         [engine = engine_, mutex = engine_mutex_, call = std::move(call)](Outcome& result) {
           const std::lock_guard<std::mutex> lock(*mutex);
           result.begin();
           call(*engine)->wait();
         });
  return c10::make_intrusive<StreamWork>(getRank(), type, stream, std::move(outcome), std::move(outputs),
                                         next_number());
}

StreamBackend::WorkPtr StreamBackend::message(c10d::OpType type, const Tensors& tensors, Call call) {
  const c10::Device device = device_of(tensors);
  const Streams& streams = streams_of(device.index());
  for (const at::Tensor& tensor : tensors) tensor.record_stream(streams.arrivals.unwrap());
  order(MTIAStream::current(device.index()), streams.posts);
  auto outcome = std::make_shared<Outcome>(name_of(type));
  auto posted = std::make_shared<WorkPtr>();
  launch(streams.posts, name_of(type), outcome, [engine = engine_, call = std::move(call), posted](Outcome& result) {
    result.begin();
    posted->reset();
    *posted = call(*engine);
  });
  order(streams.posts, streams.arrivals);
  launch(streams.arrivals, name_of(type), outcome, [posted, type](Outcome& result) {
    if (!*posted) return;  // the other item has said why
    (*posted)->wait();
    if (type == c10d::OpType::RECVANYSOURCE) result.set_source_rank((*posted)->sourceRank());
    posted->reset();
  });
  return c10::make_intrusive<StreamWork>(getRank(), type, streams.arrivals, std::move(outcome),
                                         type == c10d::OpType::SEND ? Tensors{} : tensors, next_number());
}

StreamBackend::WorkPtr StreamBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return collective(c10d::OpType::BROADCAST, device_of(tensors), tensors, tensors,
                    [on_host = engine_tensors(tensors, Elements::kMoved), options](c10d::Backend& engine) mutable {
                      return engine.broadcast(on_host, options);
                    });
}

StreamBackend::WorkPtr StreamBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_reduction(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE, device_of(tensors), tensors, tensors,
                    [on_host = engine_tensors(tensors, Elements::kReduced), options](c10d::Backend& engine) mutable {
                      return engine.allreduce(on_host, options);
                    });
}

StreamBackend::WorkPtr StreamBackend::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& options) {
  check_reduction(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE_COALESCED, device_of(tensors), tensors, tensors,
                    [on_host = engine_tensors(tensors, Elements::kReduced), options](c10d::Backend& engine) mutable {
                      return engine.allreduce_coalesced(on_host, options);
                    });
}

StreamBackend::WorkPtr StreamBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_reduction(options.reduceOp);
  return collective(c10d::OpType::REDUCE, device_of(tensors), tensors, tensors,
                    [on_host = engine_tensors(tensors, Elements::kReduced), options](c10d::Backend& engine) mutable {
                      return engine.reduce(on_host, options);
                    });
}

StreamBackend::WorkPtr StreamBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  const Tensors written = flatten(outputs), used = joined(written, inputs);
  return collective(c10d::OpType::ALLGATHER, device_of(used), used, written,
                    [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine.allgather(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return collective(c10d::OpType::_ALLGATHER_BASE, device_of({output, input}), {output, input}, {output},
                    [to = engine_tensor(output, Elements::kMoved), from = engine_tensor(input, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine._allgather_base(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  const Tensors written = flatten(outputs), used = joined(written, inputs);
  return collective(c10d::OpType::ALLGATHER_COALESCED, device_of(used), used, written,
                    [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine.allgather_coalesced(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  const Tensors used = joined(outputs, inputs);
  return collective(
      c10d::OpType::COALESCED, device_of(used), used, outputs,
      [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
       options](c10d::Backend& engine) mutable { return engine.allgather_into_tensor_coalesced(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  const Tensors written = flatten(outputs), used = joined(written, inputs);
  return collective(c10d::OpType::GATHER, device_of(used), used, written,
                    [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine.gather(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  const Tensors used = joined(outputs, flatten(inputs));
  return collective(c10d::OpType::SCATTER, device_of(used), used, outputs,
                    [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine.scatter(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  check_reduction(options.reduceOp);
  const Tensors used = joined(outputs, flatten(inputs));
  return collective(
      c10d::OpType::REDUCE_SCATTER, device_of(used), used, outputs,
      [to = engine_tensors(outputs, Elements::kReduced), from = engine_tensors(inputs, Elements::kReduced),
       options](c10d::Backend& engine) mutable { return engine.reduce_scatter(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  check_reduction(options.reduceOp);
  return collective(
      c10d::OpType::_REDUCE_SCATTER_BASE, device_of({output, input}), {output, input}, {output},
      [to = engine_tensor(output, Elements::kReduced), from = engine_tensor(input, Elements::kReduced),
       options](c10d::Backend& engine) mutable { return engine._reduce_scatter_base(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::ReduceScatterOptions& options) {
  check_reduction(options.reduceOp);
  const Tensors used = joined(outputs, inputs);
  return collective(
      c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, device_of(used), used, outputs,
      [to = engine_tensors(outputs, Elements::kReduced), from = engine_tensors(inputs, Elements::kReduced),
       options](c10d::Backend& engine) mutable { return engine.reduce_scatter_tensor_coalesced(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_sizes,
                                                    std::vector<int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& options) {
  return collective(c10d::OpType::ALLTOALL_BASE, device_of({output, input}), {output, input}, {output},
                    [to = engine_tensor(output, Elements::kMoved), from = engine_tensor(input, Elements::kMoved),
                     output_sizes, input_sizes, options](c10d::Backend& engine) mutable {
                      return engine.alltoall_base(to, from, output_sizes, input_sizes, options);
                    });
}

StreamBackend::WorkPtr StreamBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  const Tensors used = joined(outputs, inputs);
  return collective(c10d::OpType::ALLTOALL, device_of(used), used, outputs,
                    [to = engine_tensors(outputs, Elements::kMoved), from = engine_tensors(inputs, Elements::kMoved),
                     options](c10d::Backend& engine) mutable { return engine.alltoall(to, from, options); });
}

StreamBackend::WorkPtr StreamBackend::send(Tensors& tensors, int destination, int tag) {
  return message(c10d::OpType::SEND, tensors,
                 [on_host = engine_tensors(tensors, Elements::kMoved), destination,
                  tag](c10d::Backend& engine) mutable { return engine.send(on_host, destination, tag); });
}

StreamBackend::WorkPtr StreamBackend::recv(Tensors& tensors, int source, int tag) {
  return message(c10d::OpType::RECV, tensors,
                 [on_host = engine_tensors(tensors, Elements::kMoved), source, tag](c10d::Backend& engine) mutable {
                   return engine.recv(on_host, source, tag);
                 });
}

StreamBackend::WorkPtr StreamBackend::recvAnysource(Tensors& tensors, int tag) {
  return message(c10d::OpType::RECVANYSOURCE, tensors,
                 [on_host = engine_tensors(tensors, Elements::kMoved), tag](c10d::Backend& engine) mutable {
                   return engine.recvAnysource(on_host, tag);
                 });
}

StreamBackend::WorkPtr StreamBackend::barrier(const c10d::BarrierOptions& options) {
  c10::DeviceIndex device = current_device();
  if (options.device) device = index_or_current(options.device->index());
  if (!options.device_ids.empty()) device = index_or_current(static_cast<c10::DeviceIndex>(options.device_ids[0]));
  return collective(c10d::OpType::BARRIER, c10::Device(device_type(), device), {}, {},
                    [options](c10d::Backend& engine) { return engine.barrier(options); });
}

}  // namespace torch_mtia
