#include "CPUKernelLaunch.h"

#include <ATen/Context.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "CommonDevice.h"
#include "HostAlias.h"

namespace torch_mtia {
namespace {

// Whether other data might do without the error that a kernel raised for zeros.
bool is_about_data(const c10::Error& error) {
  return dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
         dynamic_cast<const c10::LinAlgError*>(&error) != nullptr;
}

// Registrations do not check the devices of operators that upstream excepts from it.
c10::Device common_device(const Operator& op, c10::Device device, const PooledAliases& tensors) {
  const bool is_common = is_ours(device) && std::ranges::all_of(tensors, [&](const PooledAlias* tensor) {
                           return tensor->device() == device || !tensor->get().defined();
                         });
  if (C10_LIKELY(is_common)) return device;
  // It writes into copies of tensors on the CPU.
  CommonDevice common(op.name, op.traits.host_tensors, /*writes_host_tensors=*/false);
  for (const PooledAlias* tensor : tensors) {
    if (tensor->get().defined()) common.add(tensor->device(), tensor->get().dim(), tensor->writes());
  }
  return common.get();
}

}  // namespace

// An operator in place has one tensor as input and output.
void unite_inputs_with_outputs(const PooledAliases& tensors) {
  for (const PooledAlias* output : tensors) {
    if (!output->writes()) continue;
    for (PooledAlias* input : tensors) {
      if (input != output && !input->writes()) input->unite_with(*output);
    }
  }
}

bool outputs_overlap(const PooledAliases& tensors) {
  return std::ranges::any_of(tensors, [&](const PooledAlias* output) {
    return output->writes() &&
           std::ranges::any_of(tensors, [&](const PooledAlias* other) { return output->overlaps(*other); });
  });
}

void overlap_as(const PooledAliases& tensors, const PooledAliases& zeros) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]->writes()) continue;
    c10::Storage whole;
    for (size_t j = 0; j < tensors.size(); ++j) {
      if (!tensors[i]->overlaps(*tensors[j])) continue;
      if (!whole) {
        const auto nbytes = static_cast<int64_t>(tensors[i]->get().storage().nbytes());
        whole = zeros_on_host(at::empty({nbytes}, at::TensorOptions(at::kMeta).dtype(at::kByte))).storage();
        zeros[i]->place_in(whole, *tensors[i]);
      }
      zeros[j]->place_in(whole, *tensors[j]);
    }
  }
}

CPUKernelLaunch::CPUKernelLaunch(const CPUKernelInfo& kernel, c10::Device device, const PooledAliases& tensors,
                                 Outputs outputs)
    : stream_(current_stream(common_device(kernel.op, device, tensors))),
      kernel_(kernel),
      device_(device_type(), stream_.device()),
      outputs_(outputs) {
  require_host_view(kernel.op.name);
  unite_inputs_with_outputs(tensors);
  DtypeSignature dtypes;
  size_t bytes = 0;
  size_t input_bytes = 0;
  bool has_inputs = false;
  bool has_results = outputs == Outputs::kMade;
  bool lacks_input = false;
  for (const PooledAlias* tensor : tensors) {
    bytes += tensor->nbytes();
    if (tensor->writes()) {
      has_results = has_results || tensor->nbytes() != 0;
    } else {
      lacks_input = lacks_input || (tensor->on_device() && tensor->nbytes() == 0 && !tensor->follows_in_list());
      has_inputs = has_inputs || tensor->on_device();
      input_bytes += tensor->nbytes();
    }
    dtypes.add(tensor->dtype_symbol());
  }
  info_.name = kernel.op.name;
  count(bytes);
  has_data_ = !has_inputs || input_bytes != 0;
  asks_for_dtypes_ = !lacks_input && has_results;
  is_known_ = has_data_ && outputs != Outputs::kUnknown && kernel.op.takes(dtypes) && !outputs_overlap(tensors);
  const bool waits = kernel.waits || at::globalContext().deterministicAlgorithms();
  if (waits && stream_.core().graph() == nullptr) awaited_.emplace();
}

void CPUKernelLaunch::ask(const PooledAliases& zeros, c10::function_ref<void()> run) {
  if (kernel_.op.traits.takes_pivots) {
    for (const PooledAlias* tensor : zeros) {
      const at::Tensor& pivots = tensor->get();
      if (pivots.scalar_type() != at::kInt) continue;
      std::fill_n(static_cast<int32_t*>(pivots.mutable_data_ptr()), pivots.storage().nbytes() / sizeof(int32_t), 1);
    }
  }
  const auto words = [&] {
    DtypeWords result;
    for (const PooledAlias* tensor : zeros) result.add(tensor->dtype_symbol());
    return asks_for_dtypes_ ? result.text() : std::string();
  };
  ask_kernel(kernel_.op, words, [&] {
    try {
      run();
    } catch (const c10::Error& error) {
      if (!has_data_ || outputs_ == Outputs::kUnknown || !is_about_data(error)) throw;
    }
  });
}

void CPUKernelLaunch::make_outputs(at::ArrayRef<TensorShape> shapes, std::span<at::Tensor> outputs) {
  size_t bytes = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!shapes.empty()) {
      outputs[i] = empty_of(shapes[i]);
    } else if (outputs[i].defined()) {
      outputs[i] = at::detail::empty_strided_mtia(outputs[i].sizes(), outputs[i].strides(),
                                                  outputs[i].options().device(device_));
    }
    if (outputs[i].defined()) bytes += outputs[i].nbytes();
  }
  count(bytes);
}

void CPUKernelLaunch::count(size_t bytes) {
  bytes_ += bytes;
  info_.cost = std::max(cost_of_bytes(bytes_) * kernel_.weight, kernel_.least_cost);
}

void CPUKernelLaunch::wait() {
  stream_.wait();
  awaited_->raise_error();
}

void list_operands(const PooledAliases& tensors, core::OperandSink& sink) {
  for (const PooledAlias* tensor : tensors) {
    if (tensor->on_device()) {
      list_operand(tensor->get(), tensor->writes(), tensor->old_bytes(), sink);
    } else if (tensor->get().defined()) {
      list_host_operand(tensor->get(), tensor->writes(), sink);
    }
  }
}

}  // namespace torch_mtia
