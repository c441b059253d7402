// What the driver says of itself and of its devices. No PyTorch.
#pragma once

#include <cstdint>
#include <optional>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

struct DriverInfo {
  const char* name;
  const char* version;
  uint32_t abi_version;
  uint64_t capabilities;

  bool can(uint64_t capability) const { return (capabilities & capability) != 0; }
};

// Functions throw runtime::DriverError. This one loads the driver and starts nothing.
DriverInfo driver_info();

// The others are for a driver that is initialized. Throws for properties that make no sense, too.
mtia_device_properties device_properties(int32_t device);
// Empty: the address is of no device.
std::optional<int32_t> device_of_address(const void* address);
// See MTIA_CAPABILITY_HOST_VIEW.
int64_t host_view_offset();

}  // namespace torch_mtia::core
