// Device memory that processes share: the memory of a file, at addresses of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

class SharedSegment {
 public:
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;  // of sizes

  // Raises runtime::DriverError, for a driver that cannot, too. The descriptor may be closed afterwards.
  SharedSegment(int32_t device, uint64_t size, int32_t file);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  // No work that uses the memory may be under way.
  ~SharedSegment();

  uint64_t address() const { return address_; }

  // All that there are, by address.
  static std::vector<mtia_span> live_ranges();

 private:
  const int32_t device_;
  const uint64_t size_;
  uint64_t address_ = 0;
};

}  // namespace torch_mtia::core
