#include "hooks.h"

#include "../core/Driver.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAFunctions.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

mtia_device_properties properties_of(c10::DeviceIndex device) {
  device = index_or_current(device);
  ensure_initialized();
  return core::device_properties(device);
}

// Leaked: it may be asked for while the interpreter ends.
py::object& device_properties_type() {
  static auto* const type = new py::object(py::none());
  return *type;
}

}  // namespace

PyObject* PythonHooks::memoryStats(c10::DeviceIndex device) const {
  const auto stats = MTIACachingAllocator::get().getDeviceStats(index_or_current(device));
  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[kAggregate];
  const auto& reserved = stats.reserved_bytes[kAggregate];
  py::dict dram;
  dram["allocated_bytes"] = allocated.current;
  dram["peak_bytes"] = allocated.peak;
  dram["reserved_bytes"] = reserved.current;
  dram["reserved_peak_bytes"] = reserved.peak;
  dram["num_alloc_retries"] = stats.num_alloc_retries;
  dram["num_ooms"] = stats.num_ooms;
  py::dict result;
  result["dram"] = dram;
  return result.release().ptr();
}

PyObject* PythonHooks::getDeviceCapability(c10::DeviceIndex device) const {
  const mtia_device_properties properties = properties_of(device);
  return py::make_tuple(properties.capability_major, properties.capability_minor).release().ptr();
}

PyObject* PythonHooks::getDeviceProperties(c10::DeviceIndex device) const {
  const mtia_device_properties properties = properties_of(device);
  py::dict result;
  result["name"] = properties.name;
  result["architecture"] = properties.architecture;
  result["total_memory"] = properties.total_memory;
  result["L2_cache_size"] = properties.l2_cache_size;
  result["multi_processor_count"] = properties.multi_processor_count;
  result["warp_size"] = properties.warp_size;
  result["major"] = properties.capability_major;
  result["minor"] = properties.capability_minor;
  return device_properties_type()(result).release().ptr();
}

void bind_hooks(py::module_& module) {
  module.def("_set_device_properties_type", [](py::object type) { device_properties_type() = std::move(type); });
  module.def("_hooks_registered_in_time", &hooks_registered_in_time);
}

}  // namespace torch_mtia

namespace at {
C10_REGISTER_TYPED_CLASS(MTIAHooksRegistry, "MTIAHooks", torch_mtia::PythonHooks)
}  // namespace at
