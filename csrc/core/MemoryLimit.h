// How much of the device's memory the allocator may hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "../runtime/loader.h"

namespace torch_mtia::core {

class MemoryLimit {
 public:
  explicit MemoryLimit(int32_t device) : device_(device) {}

  double fraction() const { return fraction_; }
  void set_fraction(double fraction) {
    if (!(fraction >= 0 && fraction <= 1)) {
      throw std::invalid_argument("a memory fraction is between 0 and 1, not " + std::to_string(fraction));
    }
    fraction_ = fraction;
  }

  // Of what the driver has for the device. Throws runtime::DriverError.
  uint64_t bytes() const {
    const uint64_t total = runtime::memory_info(device_).total_bytes;
    return fraction_ >= 1 ? total : static_cast<uint64_t>(fraction_ * static_cast<double>(total));
  }
  bool allows(uint64_t bytes) const { return fraction_ >= 1 || bytes <= this->bytes(); }

 private:
  const int32_t device_;
  double fraction_ = 1;
};

}  // namespace torch_mtia::core
