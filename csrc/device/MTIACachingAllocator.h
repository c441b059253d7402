// Device memory as c10 sees it: an adaptor over core::BlockAllocator. The counterpart of CUDACachingAllocator.h.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "MTIAFunctions.h"

namespace torch_mtia {

class MTIACachingAllocator final : public c10::DeviceAllocator {
 public:
  static MTIACachingAllocator& get();

  // Memory of the current device, for work of its current stream. Raises torch.OutOfMemoryError.
  c10::DataPtr allocate(size_t size) override;

  // Memory that the host view exposes to CPU code: a DataPtr of the CPU whose address is the host view of a block.
  // `adopt_host_block` turns such a DataPtr into one of the device, without a copy.
  c10::DataPtr allocate_host_view(size_t size);
  static bool owns_host_block(const c10::DataPtr& data);
  static c10::DataPtr adopt_host_block(c10::DataPtr&& data);

  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t size) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

}  // namespace torch_mtia
