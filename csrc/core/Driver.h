// Functions of the driver other than streams, events and graphs: its properties and those of its devices, kernels, and
// memory that processes share. No PyTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// The others need a driver that is initialized. This one throws for properties that make no sense, too.
mtia_device_properties device_properties(int32_t device);
// Empty: the address is of no device.
std::optional<int32_t> device_of_address(const void* address);
// See MTIA_CAPABILITY_HOST_VIEW.
int64_t host_view_offset();

// A kernel of an image, loaded on a device: see Note [Kernel image] in mtia_runtime.h. It may be destroyed while
// launches of it are under way.
class Kernel {
 public:
  // Throws runtime::DriverError for an image that the driver does not load. The driver must have
  // MTIA_CAPABILITY_KERNELS.
  Kernel(int32_t device, const std::string& name, std::string_view image);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  mtia_function function() const { return function_; }

 private:
  mtia_module module_ = nullptr;
  mtia_function function_ = nullptr;
};

// Device memory that processes share: the memory of a file, at addresses of a device.
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
