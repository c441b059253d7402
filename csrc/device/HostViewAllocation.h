// A scope in which new CPU tensors get memory of the device.
//
// Note [Fallback allocation]
// The fallback runs an operator's CPU kernel. Its results belong on the device, and the largest of them would cost a
// copy. So PyTorch's allocator of CPU memory is replaced, once, by one that inside this scope, on this thread, hands out
// the host view of blocks of the device; a result is then adopted as it is. Everywhere else it passes through to the
// allocator that was there before.
#pragma once

namespace torch_mtia {

class HostViewAllocation {
 public:
  HostViewAllocation();
  ~HostViewAllocation();
  HostViewAllocation(const HostViewAllocation&) = delete;
  HostViewAllocation& operator=(const HostViewAllocation&) = delete;

 private:
  const bool previous_;
};

}  // namespace torch_mtia
