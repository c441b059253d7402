#include "HostKernel.h"

#include <ATen/Context.h>

#include <algorithm>

namespace torch_mtia {
namespace {

// Whether other data might do without the error that a kernel raised for zeros.
bool is_about_data(const c10::Error& error) {
  return dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
         dynamic_cast<const c10::LinAlgError*>(&error) != nullptr;
}

}  // namespace

// An operator in place has one tensor as input and output.
void unite_inputs_with_outputs(const HostTensors& tensors) {
  for (const HostTensor* output : tensors) {
    if (!output->writes()) continue;
    for (HostTensor* input : tensors) {
      if (input != output && !input->writes()) input->unite_with(*output);
    }
  }
}

HostKernelLaunch::HostKernelLaunch(const HostKernelInfo& kernel, c10::Device device, const HostTensors& tensors)
    : stream_(current_stream(device)), op_(kernel.op) {
  require_host_view(op_.name);
  unite_inputs_with_outputs(tensors);
  DtypeSignature dtypes;
  size_t bytes = 0;
  size_t input_bytes = 0;
  bool has_inputs = false;
  bool has_results = false;
  bool lacks_input = false;
  for (const HostTensor* tensor : tensors) {
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
  info_.name = op_.name;
  info_.cost = std::max(cost_of_bytes(bytes) * kernel.weight, kernel.least_cost);
  has_data_ = !has_inputs || input_bytes != 0;
  asks_for_dtypes_ = !lacks_input && has_results;
  is_known_ = kernel.asked || (has_data_ && op_.takes(dtypes));
  waits_ = (kernel.waits || at::globalContext().deterministicAlgorithms()) && stream_.core().graph() == nullptr;
}

void HostKernelLaunch::ask(const HostTensors& zeros, c10::function_ref<void()> run) {
  if (op_.traits.takes_pivots) {
    for (const HostTensor* tensor : zeros) {
      const at::Tensor& pivots = tensor->get();
      if (pivots.scalar_type() != at::kInt) continue;
      std::fill_n(static_cast<int32_t*>(pivots.mutable_data_ptr()), pivots.storage().nbytes() / sizeof(int32_t), 1);
    }
  }
  const auto words = [&] {
    DtypeWords result;
    for (const HostTensor* tensor : zeros) result.add(tensor->dtype_symbol());
    return asks_for_dtypes_ ? result.text() : std::string();
  };
  ask_kernel(op_, words, [&] {
    try {
      run();
    } catch (const c10::Error& error) {
      if (!has_data_ || !is_about_data(error)) throw;
    }
  });
}

void HostKernelLaunch::wait() {
  stream_.wait();
  if (error_) std::rethrow_exception(error_);
}

uint32_t list_accesses(const HostTensors& tensors, mtia_access* list, uint32_t capacity) noexcept {
  uint32_t count = 0;
  for (const HostTensor* tensor : tensors) {
    if (!tensor->on_device()) continue;
    if (count < capacity) list[count] = tensor->access();
    ++count;
  }
  return count;
}

}  // namespace torch_mtia
