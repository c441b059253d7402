#include "Pointwise.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Copy.h>

#include "HostAlias.h"

namespace torch_mtia {
namespace {

using OwnedTensor = c10::MaybeOwned<at::TensorBase>;

bool on_device(const at::TensorIteratorBase& iter, int arg) {
  return !iter.device(arg).is_cpu();
}

// From the lowest to the highest address that an operand touches.
mtia_span span_of(const at::TensorIteratorBase& iter, int arg) noexcept {
  int64_t lowest = 0;
  int64_t highest = iter.element_size(arg);
  const auto strides = iter.strides(arg);
  for (int dim = 0; dim < iter.ndim(); ++dim) {
    const int64_t reach = (iter.shape()[dim] - 1) * strides[dim];
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto address = reinterpret_cast<int64_t>(HostView::to_device(iter.operand(arg).data));
  return {static_cast<mtia_device_ptr>(address + lowest), static_cast<uint64_t>(highest - lowest)};
}

at::Tensor empty_on_host_like(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_non_overlapping_and_dense()) {
    return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), dtype);
  }
  return at::detail::empty_cpu(tensor.sizes(), dtype);
}

void copy_on_host(const at::Tensor& to, const at::Tensor& from) {
  auto iter = at::TensorIteratorConfig()
                  .add_output(to)
                  .add_const_input(from)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .set_check_mem_overlap(false)
                  .build();
  at::native::copy_stub(c10::kCPU, iter, /*non_blocking=*/false);
}

}  // namespace

HostPointers::HostPointers(at::TensorIteratorBase& iter) : iter_(iter) {
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    if (on_device(iter, arg)) iter.operand(arg).data = HostView::to_host(iter.operand(arg).data);
  }
}

HostPointers::~HostPointers() {
  for (int arg = 0; arg < iter_.ntensors(); ++arg) {
    if (on_device(iter_, arg)) iter_.operand(arg).data = HostView::to_device(iter_.operand(arg).data);
  }
}

std::unique_ptr<at::TensorIterator> own_iterator(const at::TensorIteratorBase& iter, HostOperand host_operand) {
  auto own = std::make_unique<at::TensorIterator>(iter);
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    auto& operand = own->operand(arg);
    if (on_device(iter, arg) || host_operand == HostOperand::kBuffer) {
      operand.tensor(OwnedTensor::owned(host_alias(operand.tensor_base(), operand.is_output)));
      continue;
    }
    at::Tensor value = clone_on_host(operand.tensor_base());
    operand.data = value.data_ptr();
    if (operand.original_tensor_base().defined()) {
      operand.tensor(OwnedTensor::owned(clone_on_host(operand.original_tensor_base())));
      operand.exchange_tensor(OwnedTensor::owned(std::move(value)));
    } else {
      operand.tensor(OwnedTensor::owned(std::move(value)));
    }
  }
  return own;
}

bool cast_scalars(at::TensorIteratorBase& iter) {
  const auto common = iter.maybe_common_dtype();
  if (!common) return false;
  bool needs_casts = false;
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    if (C10_LIKELY(iter.dtype(arg) == *common)) continue;
    if (on_device(iter, arg)) {
      needs_casts = true;
      continue;
    }
    auto& operand = iter.operand(arg);
    at::Tensor cast = at::detail::empty_cpu({}, *common);
    copy_on_host(cast, operand.tensor());
    operand.data = cast.data_ptr();
    operand.exchange_tensor(OwnedTensor::owned(std::move(cast)));
    operand.current_dtype = *common;
    operand.target_dtype = *common;
  }
  return needs_casts;
}

CastingOperands take_casting_operands(const at::TensorIteratorBase& iter) {
  CastingOperands operands{{}, iter.noutputs(), iter.common_dtype()};
  operands.tensors.reserve(iter.ntensors());
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    const auto& tensor = iter.tensor_base(arg);
    operands.tensors.push_back(on_device(iter, arg) ? host_alias(tensor, arg < iter.noutputs())
                                                    : clone_on_host(tensor));
  }
  return operands;
}

void run_with_casts(const CastingOperands& operands, c10::function_ref<void(at::TensorIterator&)> loop) {
  std::vector<at::Tensor> cast = operands.tensors;
  for (size_t arg = 0; arg < cast.size(); ++arg) {
    if (cast[arg].scalar_type() == operands.common_dtype) continue;
    cast[arg] = empty_on_host_like(operands.tensors[arg], operands.common_dtype);
    // An output that is an input too (in place) was listed twice: its old value arrives through the input.
    if (arg >= static_cast<size_t>(operands.num_outputs)) copy_on_host(cast[arg], operands.tensors[arg]);
  }
  at::TensorIteratorConfig config;
  config.resize_outputs(false).check_all_same_dtype(false).set_check_mem_overlap(false);
  for (size_t arg = 0; arg < cast.size(); ++arg) {
    if (arg < static_cast<size_t>(operands.num_outputs)) {
      config.add_output(cast[arg]);
    } else {
      config.add_const_input(cast[arg]);
    }
  }
  auto iter = config.build();
  loop(iter);
  for (int arg = 0; arg < operands.num_outputs; ++arg) {
    if (!cast[arg].is_same(operands.tensors[arg])) copy_on_host(operands.tensors[arg], cast[arg]);
  }
}

at::TensorIterator empty_iterator(const at::TensorIteratorBase& iter) {
  at::TensorIteratorConfig config;
  config.resize_outputs(false).check_all_same_dtype(false).set_check_mem_overlap(false);
  const auto common = iter.maybe_common_dtype();
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    auto nothing = at::detail::empty_cpu({0}, common.value_or(iter.dtype(arg)));
    if (arg < iter.noutputs()) {
      config.add_owned_output(std::move(nothing));
    } else {
      config.add_owned_const_input(std::move(nothing));
    }
  }
  return config.build();
}

core::WorkInfo describe(const at::TensorIteratorBase& iter, const char* name) {
  int64_t bytes_per_element = 0;
  for (int arg = 0; arg < iter.ntensors(); ++arg) bytes_per_element += iter.element_size(arg);
  core::WorkInfo info{};
  info.name = name;
  info.cost = cost_of_bytes(static_cast<uint64_t>(iter.numel() * bytes_per_element));
  return info;
}

uint32_t list_accesses(const at::TensorIteratorBase& iter, mtia_access* list, uint32_t capacity) noexcept {
  uint32_t count = 0;
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    if (!on_device(iter, arg)) continue;
    if (count < capacity) list[count] = {span_of(iter, arg), arg < iter.noutputs()};
    ++count;
  }
  return count;
}

}  // namespace torch_mtia
