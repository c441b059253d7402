#include "DriverInfo.h"

#include <cstring>
#include <string>

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

}  // namespace torch_mtia::core
