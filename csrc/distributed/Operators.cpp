// What c10d has for each type of device. Its operators are those that PyTorch has for PrivateUse1: they ask the group
// for the backend of the device, and call it. The times of DDP's logging data
// (DistributedDataParallel._get_ddp_logging_data) are those of events, as in
// torch/csrc/distributed/c10d/reducer_cuda.cpp.
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/isnan.h>
#include <c10/core/Device.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/Event.h"
#include "../device/DeviceType.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"

namespace torch_mtia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Reduction = c10::intrusive_ptr<c10d::ReduceOp>;
using Time = std::chrono::milliseconds;

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

std::tuple<Tensors, WorkPtr> allreduce(at::TensorList tensors, const Group& group, const Reduction& reduction,
                                       const std::optional<at::Tensor>& sparse_indices, bool async_op,
                                       int64_t timeout) {
  Tensors list = tensors.vec();
  auto work = backend_of(group).allreduce(list, {*reduction, Time(timeout), async_op, sparse_indices});
  return {std::move(list), std::move(work)};
}

void define_point_to_point(torch::Library& m) {
  m.impl("send", [](at::TensorList tensors, const Group& group, int64_t destination, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group).send(list, static_cast<int>(destination), static_cast<int>(tag));
  });
  m.impl("recv_", [](at::TensorList tensors, const Group& group, int64_t source, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group).recv(list, static_cast<int>(source), static_cast<int>(tag));
  });
  m.impl("recv_any_source_", [](at::TensorList tensors, const Group& group, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group).recvAnysource(list, static_cast<int>(tag));
  });
  m.impl("barrier", [](at::Tensor tensor, const Group& group, const std::vector<int64_t>& device_ids, bool async_op,
                       int64_t timeout) {
    return backend_of(group).barrier({device_ids, Time(timeout), tensor.device(), async_op});
  });
}

void define_reductions(torch::Library& m) {
  m.impl("allreduce_", allreduce);
  m.impl("allreduce_coalesced_",
         [](at::TensorList tensors, const Group& group, const Reduction& reduction, bool async_op, int64_t timeout) {
           Tensors list = tensors.vec();
           return backend_of(group).allreduce_coalesced(list, {{*reduction, Time(timeout), async_op}});
         });
  m.impl("reduce_", [](at::TensorList tensors, const Group& group, const Reduction& reduction, int64_t root_rank,
                       int64_t root_tensor, bool async_op, int64_t timeout) {
    Tensors list = tensors.vec();
    return backend_of(group).reduce(list, {*reduction, root_rank, root_tensor, Time(timeout), async_op});
  });
  m.impl("reduce_scatter_", [](const at::TensorList& outputs, const Lists& inputs, const Group& group,
                               const Reduction& reduction, bool async_op, int64_t timeout) {
    Tensors to = outputs.vec();
    Lists from = inputs;
    auto work = backend_of(group).reduce_scatter(to, from, {*reduction, Time(timeout), async_op});
    return std::tuple(std::move(to), std::move(work));
  });
  m.impl("_reduce_scatter_base_", [](at::Tensor& output, at::Tensor& input, const Group& group,
                                     const Reduction& reduction, bool async_op, int64_t timeout) {
    auto work = backend_of(group)._reduce_scatter_base(output, input, {*reduction, Time(timeout), async_op});
    return std::tuple(output, std::move(work));
  });
  m.impl("reduce_scatter_tensor_coalesced_", [](at::TensorList outputs, at::TensorList inputs, const Group& group,
                                                const Reduction& reduction, bool async_op, int64_t timeout) {
    Tensors to = outputs.vec(), from = inputs.vec();
    return backend_of(group).reduce_scatter_tensor_coalesced(to, from, {*reduction, Time(timeout), async_op});
  });
}

void define_moves(torch::Library& m) {
  m.impl("broadcast_", [](at::TensorList tensors, const Group& group, int64_t root_rank, int64_t root_tensor,
                          bool async_op, int64_t timeout) {
    Tensors list = tensors.vec();
    auto work = backend_of(group).broadcast(list, {root_rank, root_tensor, Time(timeout), async_op});
    return std::tuple(std::move(list), std::move(work));
  });
  m.impl("allgather_",
         [](const Lists& outputs, at::TensorList inputs, const Group& group, bool async_op, int64_t timeout) {
           Lists to = outputs;
           Tensors from = inputs.vec();
           auto work = backend_of(group).allgather(to, from, {Time(timeout), async_op});
           return std::tuple(std::move(to), std::move(work));
         });
  m.impl("_allgather_base_",
         [](at::Tensor& output, at::Tensor& input, const Group& group, bool async_op, int64_t timeout) {
           auto work = backend_of(group)._allgather_base(output, input, {Time(timeout), async_op});
           return std::tuple(output, std::move(work));
         });
  m.impl("allgather_coalesced_",
         [](const Lists& outputs, const at::TensorList& inputs, const Group& group, bool async_op) {
           Lists to = outputs;
           Tensors from = inputs.vec();
           return backend_of(group).allgather_coalesced(to, from, {c10d::kUnsetTimeout, async_op});
         });
  m.impl("allgather_into_tensor_coalesced_",
         [](at::TensorList outputs, at::TensorList inputs, const Group& group, bool async_op) {
           Tensors to = outputs.vec(), from = inputs.vec();
           return backend_of(group).allgather_into_tensor_coalesced(to, from, {c10d::kUnsetTimeout, async_op});
         });
  m.impl("gather_", [](const Lists& outputs, const at::TensorList& inputs, const Group& group, int64_t root_rank,
                       bool async_op, int64_t timeout) {
    Lists to = outputs;
    Tensors from = inputs.vec();
    return backend_of(group).gather(to, from, {root_rank, Time(timeout), async_op});
  });
  m.impl("scatter_", [](const at::TensorList& outputs, const Lists& inputs, const Group& group, int64_t root_rank,
                        bool async_op, int64_t timeout) {
    Tensors to = outputs.vec();
    Lists from = inputs;
    auto work = backend_of(group).scatter(to, from, {root_rank, Time(timeout), async_op});
    return std::tuple(std::move(to), std::move(work));
  });
  m.impl("alltoall_base_",
         [](at::Tensor& output, at::Tensor& input, const Group& group, std::vector<int64_t> output_sizes,
            std::vector<int64_t> input_sizes, bool async_op, int64_t timeout) {
           return backend_of(group).alltoall_base(output, input, output_sizes, input_sizes, {Time(timeout), async_op});
         });
  m.impl("alltoall_", [](const at::TensorList& outputs, const at::TensorList& inputs, const Group& group, bool async_op,
                         int64_t timeout) {
    Tensors to = outputs.vec(), from = inputs.vec();
    auto work = backend_of(group).alltoall(to, from, {Time(timeout), async_op});
    return std::tuple(std::move(to), std::move(work));
  });
}

// Raises at a synchronizing call, as the values are known only then.
void check_for_nan(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) return;
  at::_assert_async(at::isnan(tensor).any().logical_not(), "check_for_nan: found NaN in a tensor of a collective");
}

const DeviceTypeRegistration c10d_kernels([](const RegisteredType& registered, bool active) {
  static auto* const library = new std::optional<torch::Library>();  // leaked, as all that is registered
  if (registered.type != c10::DeviceType::MTIA) return;              // PyTorch has these kernels for PrivateUse1
  if (!active) return library->reset();
  library->emplace(torch::Library::IMPL, "c10d", c10::DispatchKey::MTIA, __FILE__, __LINE__);
  define_point_to_point(**library);
  define_reductions(**library);
  define_moves(**library);
});

class ReducerTimer final : public c10d::Timer {
 public:
  explicit ReducerTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event);  // the host's time, which getTimestamp returns
    events_.at(static_cast<size_t>(event))
        .emplace(/*enable_timing=*/true)
        .record(MTIAStream::current(index_or_current(device_.index())).core());
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const std::optional<core::Event>& first = events_.at(static_cast<size_t>(start));
    const std::optional<core::Event>& last = events_.at(static_cast<size_t>(end));
    if (!first || !last) return std::nullopt;
    first->synchronize();
    last->synchronize();
    const double milliseconds = first->elapsed_time(*last);
    if (milliseconds < 0) return std::nullopt;  // the last is of the iteration before
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  const c10::Device device_;
  std::array<std::optional<core::Event>, static_cast<size_t>(Event::kBackwardCommEnd) + 1> events_;
};

}  // namespace

// Of PyTorch's own, neither device type has these.
MTIA_LIBRARY_IMPL(c10d, kBackend, m) {
  m.impl("check_for_nan", check_for_nan);
}

MTIA_LIBRARY_IMPL(c10d, kSparse, m) {
  m.impl("allreduce_", allreduce);
}

}  // namespace torch_mtia

namespace c10d {
// Of both device types.
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kMTIA, torch_mtia::ReducerTimer)
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, torch_mtia::ReducerTimer)
}  // namespace c10d
