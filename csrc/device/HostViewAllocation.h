// A scope in which new CPU tensors get memory of the device.
//
// Note [Fallback allocation]
// The fallback runs an operator's CPU kernel. Its results belong on the device, and the largest of them would cost a
// copy. So PyTorch's allocator of CPU memory is replaced, once, by one that inside this scope, on this thread, hands
// out the host view of blocks of the device; a result is then adopted as it is. Everywhere else it passes through to
// the allocator that was there before. oneDNN allocates and frees by bare address, in and outside the scope; so an
// address alone must be enough to free, and a table leads from it to the block.
#pragma once

#include <c10/core/Allocator.h>

namespace torch_mtia {

class HostViewAllocation {
 public:
  HostViewAllocation();
  ~HostViewAllocation();
  HostViewAllocation(const HostViewAllocation&) = delete;
  HostViewAllocation& operator=(const HostViewAllocation&) = delete;

  // Whether the memory was handed out in such a scope.
  static bool owns(const c10::DataPtr& data);
  // Turns it, without a copy, into memory of the device.
  static c10::DataPtr adopt(c10::DataPtr&& data);

 private:
  const bool previous_;
};

}  // namespace torch_mtia
