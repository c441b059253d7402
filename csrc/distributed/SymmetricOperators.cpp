// The operators of symm_mem that reduce, as PyTorch has them for CUDA
// (torch/csrc/distributed/c10d/symm_mem/CUDA*Ops.cu): all ranks read what the others have in symmetric memory. Sums are
// made in the order of the ranks, those of short floating point in float32, and rounded once, so all ranks have the
// same bits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../device/Door.h"
#include "SymmetricMemory.h"

namespace torch_mtia {
namespace {

using Handle = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

Handle handle_of(const at::Tensor& input, const std::string& reduction, const std::string& group_name) {
  TORCH_CHECK_VALUE(reduction == "sum", "symmetric memory is reduced by sum, got ", reduction);
  TORCH_CHECK_VALUE(input.is_contiguous(), "expected a contiguous tensor in symmetric memory");
  Handle handle = c10d::symmetric_memory::rendezvous(input, group_name);
  TORCH_CHECK_VALUE(handle, "expected a tensor of torch.distributed._symmetric_memory.empty");
  return handle;
}

// The input of each rank, as one dimension.
std::vector<at::Tensor> inputs_of(const Handle& handle, const at::Tensor& input) {
  const auto first = static_cast<int64_t>(handle->get_offset() / input.element_size()) + input.storage_offset();
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < handle->get_world_size(); ++rank) {
    inputs.push_back(handle->get_buffer(rank, {input.numel()}, input.scalar_type(), first));
  }
  return inputs;
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) {
  const c10::ScalarType dtype = tensors[0].scalar_type();
  at::Tensor sum = tensors[0].to(c10::isReducedFloatingType(dtype) ? at::kFloat : dtype, false, /*copy=*/true);
  for (size_t i = 1; i < tensors.size(); ++i) sum.add_(tensors[i]);
  return sum.to(dtype);
}

at::Tensor one_shot_all_reduce_out(const at::Tensor& input, std::string reduction, std::string group_name,
                                   at::Tensor out) {
  const Handle handle = handle_of(input, reduction, group_name);
  handle->barrier(0, 0);
  out.copy_(sum_of(inputs_of(handle, input)).view(out.sizes()));
  handle->barrier(0, 0);  // from here on the inputs may be written again
  return out;
}

at::Tensor one_shot_all_reduce(const at::Tensor& input, std::string reduction, std::string group_name) {
  return one_shot_all_reduce_out(input, std::move(reduction), std::move(group_name), at::empty_like(input));
}

// `symm_buffer` is the input once `local_input` is in it.
at::Tensor one_shot_all_reduce_copy_out(const at::Tensor& symm_buffer, const at::Tensor& local_input,
                                        std::string reduction, std::string group_name, at::Tensor out) {
  TORCH_CHECK_VALUE(
      local_input.numel() <= symm_buffer.numel() && local_input.scalar_type() == symm_buffer.scalar_type(),
      "expected local_input to fit into symm_buffer and to have its dtype");
  at::Tensor input = symm_buffer.view({-1}).narrow(0, 0, local_input.numel()).view(local_input.sizes());
  input.copy_(local_input);
  return one_shot_all_reduce_out(input, std::move(reduction), std::move(group_name), std::move(out));
}

at::Tensor one_shot_all_reduce_copy(const at::Tensor& symm_buffer, const at::Tensor& local_input, std::string reduction,
                                    std::string group_name) {
  return one_shot_all_reduce_copy_out(symm_buffer, local_input, std::move(reduction), std::move(group_name),
                                      at::empty_like(local_input));
}

at::Tensor two_shot_all_reduce_(at::Tensor input, std::string reduction, std::string group_name) {
  const Handle handle = handle_of(input, reduction, group_name);
  const std::vector<at::Tensor> inputs = inputs_of(handle, input);
  const int64_t size = handle->get_world_size(), count = (input.numel() + size - 1) / size;
  const auto part = [&](const at::Tensor& tensor, int64_t rank) {
    const int64_t first = std::min(rank * count, tensor.numel());
    return tensor.narrow(0, first, std::min(count, tensor.numel() - first));
  };
  const int rank = handle->get_rank();
  handle->barrier(0, 0);
  std::vector<at::Tensor> own_parts;
  for (const at::Tensor& each : inputs) own_parts.push_back(part(each, rank));
  own_parts[rank].copy_(sum_of(own_parts));  // nobody else reads this part before the barrier
  handle->barrier(0, 0);
  for (int64_t other = 0; other < size; ++other) {
    if (other != rank) part(inputs[rank], other).copy_(part(inputs[other], other));
  }
  handle->barrier(0, 0);
  return input;
}

at::Tensor two_shot_all_reduce_out(at::Tensor input, std::string reduction, std::string group_name, at::Tensor output) {
  return output.copy_(two_shot_all_reduce_(std::move(input), std::move(reduction), std::move(group_name)));
}

const DoorPart allocator([](const Door& /*door*/, bool open) {
  if (open) SymmetricAllocator::make_known();
});

}  // namespace

MTIA_LIBRARY_IMPL(symm_mem, kBackend, m) {
  m.impl("one_shot_all_reduce", one_shot_all_reduce);
  m.impl("one_shot_all_reduce_copy", one_shot_all_reduce_copy);
  m.impl("one_shot_all_reduce_copy_out", one_shot_all_reduce_copy_out);
  m.impl("one_shot_all_reduce_out", one_shot_all_reduce_out);
  m.impl("two_shot_all_reduce_", two_shot_all_reduce_);
  m.impl("two_shot_all_reduce_out", two_shot_all_reduce_out);
}

}  // namespace torch_mtia
