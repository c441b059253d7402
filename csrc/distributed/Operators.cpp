// The operators of c10d for mtia. PyTorch has them for PrivateUse1, and they do the same: ask the group for the backend
// of the device, and call it.
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/isnan.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <optional>
#include <tuple>
#include <vector>

#include "../device/Door.h"

namespace torch_mtia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Reduction = c10::intrusive_ptr<c10d::ReduceOp>;

// The engine of the host cannot have the device's memory: it would read and write while work is queued that uses it.
c10d::Backend& backend_of(const Group& group) {
  TORCH_CHECK(group->hasBackendForDeviceType(device_type()), "the process group '", group->getBackendName(),
              "' serves no tensors of ", device_name(),
              ": start it with init_process_group(), without a backend, or "
              "with backend='cpu:gloo,",
              device_name(), ":tmccl' to have both");
  const auto backend = group->getBackend(device_type());
  TORCH_CHECK(backend->getBackendName() != "gloo", "gloo serves no tensors of ", device_name(),
              ": start the process group with backend='cpu:gloo,", device_name(), ":tmccl'");
  return *backend;
}

std::chrono::milliseconds milliseconds(int64_t count) {
  return std::chrono::milliseconds(count);
}

WorkPtr send(at::TensorList tensors, const Group& group, int64_t destination, int64_t tag) {
  Tensors list = tensors.vec();
  return backend_of(group).send(list, static_cast<int>(destination), static_cast<int>(tag));
}

WorkPtr recv(at::TensorList tensors, const Group& group, int64_t source, int64_t tag) {
  Tensors list = tensors.vec();
  return backend_of(group).recv(list, static_cast<int>(source), static_cast<int>(tag));
}

WorkPtr recv_any_source(at::TensorList tensors, const Group& group, int64_t tag) {
  Tensors list = tensors.vec();
  return backend_of(group).recvAnysource(list, static_cast<int>(tag));
}

WorkPtr reduce(at::TensorList tensors, const Group& group, const Reduction& reduction, int64_t root_rank,
               int64_t root_tensor, bool async_op, int64_t timeout) {
  Tensors list = tensors.vec();
  return backend_of(group).reduce(
      list, c10d::ReduceOptions{*reduction, root_rank, root_tensor, milliseconds(timeout), async_op});
}

std::tuple<Tensors, WorkPtr> broadcast(at::TensorList tensors, const Group& group, int64_t root_rank,
                                       int64_t root_tensor, bool async_op, int64_t timeout) {
  Tensors list = tensors.vec();
  auto work = backend_of(group).broadcast(
      list, c10d::BroadcastOptions{root_rank, root_tensor, milliseconds(timeout), async_op});
  return {std::move(list), std::move(work)};
}

std::tuple<Tensors, WorkPtr> allreduce(at::TensorList tensors, const Group& group, const Reduction& reduction,
                                       const std::optional<at::Tensor>& sparse_indices, bool async_op,
                                       int64_t timeout) {
  Tensors list = tensors.vec();
  auto work = backend_of(group).allreduce(
      list, c10d::AllreduceOptions{*reduction, milliseconds(timeout), async_op, sparse_indices});
  return {std::move(list), std::move(work)};
}

WorkPtr allreduce_coalesced(at::TensorList tensors, const Group& group, const Reduction& reduction, bool async_op,
                            int64_t timeout) {
  Tensors list = tensors.vec();
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = *reduction;
  options.timeout = milliseconds(timeout);
  options.asyncOp = async_op;
  return backend_of(group).allreduce_coalesced(list, options);
}

std::tuple<std::vector<Tensors>, WorkPtr> allgather(const std::vector<Tensors>& outputs, at::TensorList inputs,
                                                    const Group& group, bool async_op, int64_t timeout) {
  std::vector<Tensors> lists = outputs;
  Tensors list = inputs.vec();
  auto work = backend_of(group).allgather(lists, list, c10d::AllgatherOptions{milliseconds(timeout), async_op});
  return {std::move(lists), std::move(work)};
}

std::tuple<at::Tensor, WorkPtr> allgather_base(at::Tensor& output, at::Tensor& input, const Group& group, bool async_op,
                                               int64_t timeout) {
  auto work = backend_of(group)._allgather_base(output, input, c10d::AllgatherOptions{milliseconds(timeout), async_op});
  return {output, std::move(work)};
}

WorkPtr allgather_coalesced(const std::vector<Tensors>& outputs, const at::TensorList& inputs, const Group& group,
                            bool async_op) {
  std::vector<Tensors> lists = outputs;
  Tensors list = inputs.vec();
  return backend_of(group).allgather_coalesced(lists, list, c10d::AllgatherOptions{c10d::kUnsetTimeout, async_op});
}

WorkPtr allgather_into_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const Group& group,
                                        bool async_op) {
  Tensors to = outputs.vec(), from = inputs.vec();
  return backend_of(group).allgather_into_tensor_coalesced(to, from,
                                                           c10d::AllgatherOptions{c10d::kUnsetTimeout, async_op});
}

WorkPtr gather(const std::vector<Tensors>& outputs, const at::TensorList& inputs, const Group& group, int64_t root_rank,
               bool async_op, int64_t timeout) {
  std::vector<Tensors> lists = outputs;
  Tensors list = inputs.vec();
  return backend_of(group).gather(lists, list, c10d::GatherOptions{root_rank, milliseconds(timeout), async_op});
}

std::tuple<Tensors, WorkPtr> scatter(const at::TensorList& outputs, const std::vector<Tensors>& inputs,
                                     const Group& group, int64_t root_rank, bool async_op, int64_t timeout) {
  Tensors list = outputs.vec();
  std::vector<Tensors> lists = inputs;
  auto work = backend_of(group).scatter(list, lists, c10d::ScatterOptions{root_rank, milliseconds(timeout), async_op});
  return {std::move(list), std::move(work)};
}

std::tuple<Tensors, WorkPtr> reduce_scatter(const at::TensorList& outputs, const std::vector<Tensors>& inputs,
                                            const Group& group, const Reduction& reduction, bool async_op,
                                            int64_t timeout) {
  Tensors list = outputs.vec();
  std::vector<Tensors> lists = inputs;
  auto work = backend_of(group).reduce_scatter(list, lists,
                                               c10d::ReduceScatterOptions{*reduction, milliseconds(timeout), async_op});
  return {std::move(list), std::move(work)};
}

std::tuple<at::Tensor, WorkPtr> reduce_scatter_base(at::Tensor& output, at::Tensor& input, const Group& group,
                                                    const Reduction& reduction, bool async_op, int64_t timeout) {
  auto work = backend_of(group)._reduce_scatter_base(
      output, input, c10d::ReduceScatterOptions{*reduction, milliseconds(timeout), async_op});
  return {output, std::move(work)};
}

WorkPtr reduce_scatter_tensor_coalesced(at::TensorList outputs, at::TensorList inputs, const Group& group,
                                        const Reduction& reduction, bool async_op, int64_t timeout) {
  Tensors to = outputs.vec(), from = inputs.vec();
  return backend_of(group).reduce_scatter_tensor_coalesced(
      to, from, c10d::ReduceScatterOptions{*reduction, milliseconds(timeout), async_op});
}

WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, const Group& group, std::vector<int64_t> output_sizes,
                      std::vector<int64_t> input_sizes, bool async_op, int64_t timeout) {
  return backend_of(group).alltoall_base(output, input, output_sizes, input_sizes,
                                         c10d::AllToAllOptions{milliseconds(timeout), async_op});
}

std::tuple<Tensors, WorkPtr> alltoall(const at::TensorList& outputs, const at::TensorList& inputs, const Group& group,
                                      bool async_op, int64_t timeout) {
  Tensors to = outputs.vec(), from = inputs.vec();
  auto work = backend_of(group).alltoall(to, from, c10d::AllToAllOptions{milliseconds(timeout), async_op});
  return {std::move(to), std::move(work)};
}

WorkPtr barrier(at::Tensor tensor, const Group& group, const std::vector<int64_t>& device_ids, bool async_op,
                int64_t timeout) {
  return backend_of(group).barrier(c10d::BarrierOptions{device_ids, milliseconds(timeout), tensor.device(), async_op});
}

// Raises at a synchronizing call, as the values are known only then.
void check_for_nan(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) return;
  at::_assert_async(at::isnan(tensor).any().logical_not(), "check_for_nan: found NaN in a tensor of a collective");
}

void define(torch::Library& m) {
  m.impl("send", send);
  m.impl("recv_", recv);
  m.impl("recv_any_source_", recv_any_source);
  m.impl("reduce_", reduce);
  m.impl("broadcast_", broadcast);
  m.impl("allreduce_", allreduce);
  m.impl("allreduce_coalesced_", allreduce_coalesced);
  m.impl("allgather_", allgather);
  m.impl("_allgather_base_", allgather_base);
  m.impl("allgather_coalesced_", allgather_coalesced);
  m.impl("allgather_into_tensor_coalesced_", allgather_into_tensor_coalesced);
  m.impl("gather_", gather);
  m.impl("scatter_", scatter);
  m.impl("reduce_scatter_", reduce_scatter);
  m.impl("_reduce_scatter_base_", reduce_scatter_base);
  m.impl("reduce_scatter_tensor_coalesced_", reduce_scatter_tensor_coalesced);
  m.impl("alltoall_base_", alltoall_base);
  m.impl("alltoall_", alltoall);
  m.impl("barrier", barrier);
}

const DoorPart c10d_kernels([](const Door& door, bool open) {
  static auto* const library = new std::optional<torch::Library>();  // leaked, as all that a door registers
  if (door.type != c10::DeviceType::MTIA) return;                    // PyTorch has these kernels for PrivateUse1
  if (!open) return library->reset();
  library->emplace(torch::Library::IMPL, "c10d", c10::DispatchKey::MTIA, __FILE__, __LINE__);
  define(**library);
});

}  // namespace

// Of PyTorch's own, neither door has these.
MTIA_LIBRARY_IMPL(c10d, kBackend, m) {
  m.impl("check_for_nan", check_for_nan);
}

MTIA_LIBRARY_IMPL(c10d, kSparse, m) {
  m.impl("allreduce_", allreduce);
}

}  // namespace torch_mtia
