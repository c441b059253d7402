// Numbers from outside as indices of devices.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace torch_mtia {

// Negative numbers stay negative: the current device, for most functions. Raises RuntimeError for a number of no
// device, which a cast may turn into that of another.
c10::DeviceIndex to_device_index(int64_t number);

}  // namespace torch_mtia
