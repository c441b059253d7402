#include "MTIAKernel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "MTIACachingAllocator.h"

namespace torch_mtia {
namespace {

constexpr mtia_span kNothing{};

const mtia_runtime_api& driver_of_kernels() {
  const mtia_runtime_api& driver = runtime::driver();
  TORCH_CHECK_NOT_IMPLEMENTED((driver.capabilities & MTIA_CAPABILITY_KERNELS) != 0, "the driver '", driver.name,
                              "' does not load kernels (MTIA_CAPABILITY_KERNELS)");
  return driver;
}

}  // namespace

MTIAKernel::MTIAKernel(c10::DeviceIndex device, std::string name, std::string_view image)
    : device_(device), name_(std::move(name)) {
  check_device_index(device);
  ensure_initialized();
  const mtia_runtime_api& driver = driver_of_kernels();
  runtime::call(&mtia_runtime_api::module_load, device, image.data(), image.size(), &module_);
  const std::string name_in_image = name_.substr(0, sizeof(mtia_kernel_image_header::name) - 1);  // what fits
  const mtia_status status = driver.module_get_function(module_, name_in_image.c_str(), &function_);
  if (status != MTIA_SUCCESS) {
    const auto error = runtime::last_error(status, &mtia_runtime_api::module_get_function);
    driver.module_unload(module_);
    throw error;
  }
}

MTIAKernel::~MTIAKernel() {
  runtime::driver().module_unload(module_);  // cannot fail but in a forked child, where nothing is left to free
}

void MTIAKernel::launch(const MTIAStream& stream, const std::array<int32_t, 3>& grid, const void* packed_arguments,
                        uint32_t packed_arguments_size) const {
  const mtia_runtime_api& driver = runtime::driver();
  mtia_kernel_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.num_threads = at::get_num_threads();
  launch.function = function_;
  std::copy(grid.begin(), grid.end(), launch.grid);
  launch.packed_arguments_size = packed_arguments_size;
  launch.packed_arguments = packed_arguments;
  std::vector<mtia_span> live_ranges;
  if (C10_UNLIKELY(check_bounds_)) {
    live_ranges = MTIACachingAllocator::of(device_).live_ranges();
    launch.live_ranges = live_ranges.empty() ? &kNothing : live_ranges.data();  // null would mean: no checks
    launch.num_live_ranges = live_ranges.size();
  }
  const mtia_status status = driver.stream_launch_kernel(stream.core().handle(), &launch);
  if (C10_LIKELY(status == MTIA_SUCCESS)) return;
  if (status != MTIA_ERROR_LAUNCH_FAILED) runtime::check(status, &mtia_runtime_api::stream_launch_kernel);
  stream.core().record_error("a Triton kernel", nullptr, driver.last_error_message());
  stream.synchronize();
}

}  // namespace torch_mtia
