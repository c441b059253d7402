#include "MTIAKernel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "../core/Driver.h"
#include "../core/Hooks.h"
#include "MTIACachingAllocator.h"

namespace torch_mtia {
namespace {

constexpr mtia_span kNothing{};

// The device, initialized, of a driver that has kernels.
c10::DeviceIndex device_of_kernels(c10::DeviceIndex device) {
  check_device_index(device);
  ensure_initialized();
  const core::DriverInfo driver = core::driver_info();
  TORCH_CHECK_NOT_IMPLEMENTED(driver.can(MTIA_CAPABILITY_KERNELS), "the driver '", driver.name,
                              "' does not load kernels (MTIA_CAPABILITY_KERNELS)");
  return device;
}

// What kernels of the device may touch, by address: tensors, and memory that processes share.
std::vector<mtia_span> live_ranges_of(c10::DeviceIndex device) {
  std::vector<mtia_span> ranges = MTIACachingAllocator::of(device).live_ranges();
  const std::vector<mtia_span> shared = core::SharedSegment::live_ranges();
  const auto middle = ranges.insert(ranges.end(), shared.begin(), shared.end());
  std::inplace_merge(ranges.begin(), middle, ranges.end(),
                     [](const mtia_span& a, const mtia_span& b) { return a.address < b.address; });
  return ranges;
}

}  // namespace

constinit bool MTIAKernel::check_bounds_ = false;

MTIAKernel::MTIAKernel(c10::DeviceIndex device, std::string name, std::string_view image)
    : device_(device), name_(std::move(name)), kernel_(device_of_kernels(device), name_, image) {}

void MTIAKernel::launch(const MTIAStream& stream, const std::array<int32_t, 3>& grid, const void* packed_arguments,
                        uint32_t packed_arguments_size, const mtia_kernel_watch* watch) const {
  mtia_kernel_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.num_threads = watch == nullptr ? at::get_num_threads() : 1;
  launch.watch = watch;
  launch.function = kernel_.function();
  std::copy(grid.begin(), grid.end(), launch.grid);
  launch.packed_arguments_size = packed_arguments_size;
  launch.packed_arguments = packed_arguments;
  std::vector<mtia_span> live_ranges;
  if (C10_UNLIKELY(check_bounds_ || core::current_observer() != nullptr)) {
    live_ranges = live_ranges_of(device_);
    launch.live_ranges = live_ranges.empty() ? &kNothing : live_ranges.data();  // null would mean: no checks
    launch.num_live_ranges = live_ranges.size();
  }
  stream.core().launch_kernel(name_.c_str(), launch);
}

}  // namespace torch_mtia
