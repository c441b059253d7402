#include "Staging.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "../device/Door.h"
#include "../device/HostView.h"

namespace torch_mtia {

at::Tensor Staging::of(const at::Tensor& tensor) {
  if (HostView::available() || !is_ours(tensor.device())) return tensor;
  const auto options = tensor.options().device(at::kCPU);
  const at::Tensor pinned = at::empty(tensor.sizes(), options.pinned_memory(true));
  staged_.emplace_back(tensor, pinned);
  // Owns nothing: the thread of the driver that drops the call must not be the one that frees pinned memory.
  return at::from_blob(pinned.mutable_data_ptr(), pinned.sizes(), pinned.strides(), options);
}

std::vector<at::Tensor> Staging::of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(of(tensor));
  return result;
}

std::vector<std::vector<at::Tensor>> Staging::of(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& tensors : lists) result.push_back(of(tensors));
  return result;
}

void Staging::copy_in(const MTIAStream& stream) const {
  if (staged_.empty()) return;
  const auto* const device = c10::impl::getDeviceGuardImpl(stream.unwrap().device_type());
  TORCH_CHECK_NOT_IMPLEMENTED(!device->isStreamCapturing(stream.unwrap()),
                              "collectives are captured in graphs where the driver has a host view of its memory");
  const c10::StreamGuard guard(stream.unwrap());
  for (const auto& [tensor, pinned] : staged_) pinned.copy_(tensor, /*non_blocking=*/true);
}

void Staging::copy_out(const MTIAStream& stream, const std::vector<at::Tensor>& written) const {
  const c10::StreamGuard guard(stream.unwrap());
  for (const auto& [tensor, pinned] : staged_) {
    const c10::DataPtr& memory = pinned.storage().data_ptr();
    at::getHostAllocator(tensor.device().type())->record_event(memory.get(), memory.get_context(), stream.unwrap());
    const bool is_written =
        std::any_of(written.begin(), written.end(), [&](const at::Tensor& each) { return each.is_same(tensor); });
    if (is_written) tensor.copy_(pinned, /*non_blocking=*/true);
  }
}

}  // namespace torch_mtia
