#include "Driver.h"

#include <cstring>
#include <map>
#include <mutex>

#include "../runtime/forks.h"
#include "../runtime/loader.h"

namespace torch_mtia::core {
namespace {

void check_sane(const mtia_device_properties& properties) {
  const auto ends = [](const auto& text) { return std::memchr(text, 0, sizeof(text)) != nullptr; };
  if (ends(properties.name) && ends(properties.architecture) && properties.total_memory > 0 &&
      properties.multi_processor_count > 0 && properties.warp_size > 0) {
    return;
  }
  runtime::reject(&mtia_runtime_api::device_properties,
                  "describes a device with " + std::to_string(properties.total_memory) + " bytes of memory, " +
                      std::to_string(properties.multi_processor_count) + " multiprocessors and warps of " +
                      std::to_string(properties.warp_size) + ", or with texts that do not end");
}

}  // namespace

DriverInfo driver_info() {
  const mtia_runtime_api& driver = runtime::driver();
  return {driver.name, driver.version, driver.abi_version, driver.capabilities};
}

mtia_device_properties device_properties(int32_t device) {
  mtia_device_properties properties{};
  properties.struct_size = sizeof(properties);
  runtime::call(&mtia_runtime_api::device_properties, device, &properties);
  check_sane(properties);
  return properties;
}

std::optional<int32_t> device_of_address(const void* address) {
  int32_t device = 0;
  if (runtime::driver().memory_device(address, &device) != MTIA_SUCCESS) return std::nullopt;
  return device;
}

int64_t host_view_offset() {
  int64_t offset = 0;
  runtime::call(&mtia_runtime_api::memory_host_offset, &offset);
  return offset;
}

Kernel::Kernel(int32_t device, const std::string& name, std::string_view image) {
  runtime::call(&mtia_runtime_api::module_load, device, image.data(), image.size(), &module_);
  const std::string name_in_image = name.substr(0, sizeof(mtia_kernel_image_header::name) - 1);  // what fits
  const mtia_runtime_api& driver = runtime::driver();
  const mtia_status status = driver.module_get_function(module_, name_in_image.c_str(), &function_);
  if (status != MTIA_SUCCESS) {
    const auto error = runtime::last_error(status, &mtia_runtime_api::module_get_function);
    driver.module_unload(module_);
    throw error;
  }
}

Kernel::~Kernel() {
  runtime::driver().module_unload(module_);  // cannot fail but in a forked child, where nothing is left to free
}

namespace {

struct SharedSegments {
  SharedSegments() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  std::mutex mutex;
  std::map<uint64_t, uint64_t> sizes;  // by address
};

// Leaked: segments may be destroyed while the process ends.
SharedSegments& shared_segments() {
  static auto* const instance = new SharedSegments();
  return *instance;
}

}  // namespace

SharedSegment::SharedSegment(int32_t device, uint64_t size, int32_t file) : device_(device), size_(size) {
  runtime::call(&mtia_runtime_api::memory_reserve, device_, size_, &address_);
  try {
    runtime::call(&mtia_runtime_api::memory_map_shared, device_, address_, size_, file);
  } catch (...) {
    runtime::driver().memory_release(device_, address_);
    throw;
  }
  const std::lock_guard lock(shared_segments().mutex);
  shared_segments().sizes.emplace(address_, size_);
}

SharedSegment::~SharedSegment() {
  {
    const std::lock_guard lock(shared_segments().mutex);
    shared_segments().sizes.erase(address_);
  }
  runtime::driver().memory_unmap(device_, address_, size_);
  runtime::driver().memory_release(device_, address_);
}

std::vector<mtia_span> SharedSegment::live_ranges() {
  const std::lock_guard lock(shared_segments().mutex);
  std::vector<mtia_span> result;
  for (const auto& [address, size] : shared_segments().sizes) result.push_back({address, size});
  return result;
}

}  // namespace torch_mtia::core
