#include "HostKernel.h"

#include <ATen/Context.h>

#include <algorithm>
#include <string_view>

#include "../device/BlockingWait.h"

namespace torch_mtia {
namespace {

// An operator in place has one tensor as input and output.
void unite_inputs_with_outputs(const HostTensors& tensors) {
  for (const HostTensor* output : tensors) {
    if (!output->writes()) continue;
    for (HostTensor* input : tensors) {
      if (input != output && !input->writes()) input->unite_with(*output);
    }
  }
}

}  // namespace

HostKernelLaunch::HostKernelLaunch(const HostKernelInfo& kernel, c10::Device device, const HostTensors& tensors,
                                   SupportedDtypes& supported)
    : stream_(current_stream(device)), supported_(supported) {
  require_host_view(kernel.name);
  unite_inputs_with_outputs(tensors);
  size_t bytes = 0;
  for (const HostTensor* tensor : tensors) {
    bytes += tensor->nbytes();
    dtypes_ = dtypes_ * (static_cast<uint64_t>(at::ScalarType::NumOptions) + 1) + tensor->dtype_number();
  }
  info_.name = kernel.name;
  info_.cost = std::max(cost_of_bytes(bytes) * kernel.weight, kernel.least_cost);
  // A capture cannot wait for the kernel: a dtype that it lacks shows at the first replay.
  const bool captures = stream_.core().graph() != nullptr;
  is_known_ = captures || supported.contains(dtypes_);
  waits_ = !captures && (kernel.waits || at::globalContext().deterministicAlgorithms());
}

void HostKernelLaunch::wait() {
  if (!is_known_) wait_for_first_use();
  if (waits_) stream_.synchronize();
}

void HostKernelLaunch::wait_for_first_use() {
  {
    BlockingWait wait;
    stream_.core().wait_until_idle();
  }
  if (unsupported_) std::rethrow_exception(unsupported_);
  supported_.insert(dtypes_);
}

bool says_unsupported(const c10::Error& error) {
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("not implemented for") != std::string_view::npos;
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
