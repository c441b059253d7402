#include "HostKernel.h"

#include <ATen/Context.h>

#include <algorithm>
#include <optional>

namespace torch_mtia {
namespace {

// The dtypes of a call's tensors, in order. Equal neighbours in a list count once: it has any length.
class Dtypes {
 public:
  void add(const HostTensor& tensor) {
    const uint64_t number = tensor.dtype_number();
    if (number != 0) note(tensor.get().scalar_type(), tensor.writes());
    if (tensor.follows_in_list() && number == latest_) return;
    latest_ = number;
    const uint64_t symbol = 2 * number + (tensor.follows_in_list() ? 1 : 0);
    code_ = code_ * 0x100000001b3 + symbol;  // odd: nothing is shifted out
  }
  // Never 0.
  uint64_t code() const { return std::max<uint64_t>(code_, 1); }
  // The one dtype of all tensors, beside indices and masks that are results.
  std::optional<at::ScalarType> common() const { return differ_ ? std::nullopt : first_; }

 private:
  void note(at::ScalarType dtype, bool is_written) {
    if (is_written && (dtype == at::kLong || dtype == at::kBool)) return;
    differ_ = differ_ || (first_ && *first_ != dtype);
    first_ = dtype;
  }

  uint64_t code_ = 1;
  uint64_t latest_ = 0;
  std::optional<at::ScalarType> first_;
  bool differ_ = false;
};

bool is_well_known(const Dtypes& dtypes, const OperatorTraits& kernel) {
  const std::optional<at::ScalarType> dtype = dtypes.common();
  if (!dtype || kernel.unchecked_integers) return false;
  if (*dtype == at::kFloat || *dtype == at::kDouble) return true;
  return at::isReducedFloatingType(*dtype) && !kernel.lacks_16_bits;
}

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

HostKernelLaunch::HostKernelLaunch(const HostKernelInfo& kernel, c10::Device device, const HostTensors& tensors,
                                   SupportedDtypes& supported)
    : stream_(current_stream(device)), supported_(supported), traits_(kernel.op.traits) {
  require_host_view(kernel.op.name);
  unite_inputs_with_outputs(tensors);
  Dtypes dtypes;
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
    dtypes.add(*tensor);
  }
  dtypes_ = dtypes.code();
  info_.name = kernel.op.name;
  info_.cost = std::max(cost_of_bytes(bytes) * kernel.weight, kernel.least_cost);
  has_data_ = !has_inputs || input_bytes != 0;
  is_known_ = kernel.tried || (has_data_ && supported.contains(dtypes_));
  if (!is_known_ && has_data_ && is_well_known(dtypes, traits_)) {
    supported.insert(dtypes_);
    is_known_ = true;
  }
  // A kernel may not look at the dtypes where an input or all results are empty: nothing is learned then.
  if (lacks_input || !has_results) dtypes_ = 0;
  waits_ = (kernel.waits || at::globalContext().deterministicAlgorithms()) && stream_.core().graph() == nullptr;
}

void HostKernelLaunch::run_on_zeros(const HostTensors& zeros, c10::function_ref<void()> run) {
  if (traits_.takes_pivots) {
    for (const HostTensor* tensor : zeros) {
      const at::Tensor& pivots = tensor->get();
      if (pivots.scalar_type() != at::kInt) continue;
      std::fill_n(static_cast<int32_t*>(pivots.mutable_data_ptr()), pivots.storage().nbytes() / sizeof(int32_t), 1);
    }
  }
  try {
    run();
  } catch (const c10::Error& error) {
    if (!has_data_ || !is_about_data(error)) throw;
  }
  if (dtypes_ != 0) supported_.insert(dtypes_);
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
