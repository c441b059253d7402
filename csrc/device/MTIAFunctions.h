// Devices of the process: how many, which one is current on this thread. The counterpart of c10/cuda/CUDAFunctions.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "../processor/attributes.h"
#include "DeviceType.h"

namespace torch_mtia {

inline constexpr c10::DeviceIndex kMaxDevices = 64;

// Settings of the driver. Called before anything else here; loads nothing. The last call before the driver is
// initialized wins.
void configure(const std::string& driver_library, int32_t num_devices, uint64_t memory_per_device, bool launch_blocking,
               uint64_t delay_seed, bool poison, bool log_launches);

// Starts no thread and does not initialize the device, so that it may be called before a fork. 0 if the driver cannot
// be loaded.
c10::DeviceIndex device_count() noexcept;

// Whether the devices were taken into use, and this is one of them.
bool is_in_use(c10::DeviceIndex index) noexcept;

// Takes the devices into use; later calls cost one atomic load. Raises RuntimeError in a child that was forked after
// its parent did so.
void ensure_initialized();

namespace detail {
INITIAL_EXEC extern constinit thread_local c10::DeviceIndex current_device;
}
inline c10::DeviceIndex current_device() noexcept {
  return detail::current_device;
}

// Raises RuntimeError for an index that does not exist.
void check_device_index(c10::DeviceIndex index);
// The current device for a negative index; checks the others.
c10::DeviceIndex index_or_current(c10::DeviceIndex index);
void set_device(c10::DeviceIndex index);
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
c10::DeviceIndex maybe_exchange_device(c10::DeviceIndex index);  // a negative index changes nothing

// For destructors: an index that does not exist is ignored.
void set_device_unchecked(c10::DeviceIndex index) noexcept;

// The device that an address belongs to. Raises RuntimeError for others.
c10::Device device_of_address(const void* address);

// Blocks, with the GIL released, until everything submitted to the device is done. Raises the first error of its work.
void synchronize_device(c10::DeviceIndex index);

// Negative numbers stay negative: the current device, for most functions. Raises RuntimeError for a number of no
// device, which a cast may turn into that of another.
c10::DeviceIndex to_device_index(int64_t number);

}  // namespace torch_mtia
