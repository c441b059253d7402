#include <pybind11/stl.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "../device/MTIAFunctions.h"
#include "../device/MTIAGenerator.h"
#include "../runtime/loader.h"
#include "bindings.h"
#include "hooks.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

py::object owned(PyObject* object) {
  return py::reinterpret_steal<py::object>(object);
}

}  // namespace

void bind_device_module(py::module_& m) {
  static const PythonHooks hooks;
  m.def("_device_count", &device_count);
  m.def("_is_initialized", &runtime::is_initialized);
  on_first_use = [] { torch::utils::register_fork_handler_for_device_init(device_type()); };
  m.def("_initialize", &ensure_initialized);
  m.def("_exchange_device", &exchange_device);
  m.def("_maybe_exchange_device",
        [](c10::DeviceIndex device) { return device < 0 ? device : maybe_exchange_device(device); });
  m.def("_current_device", &current_device);
  m.def("_is_in_bad_fork", [] { return torch::utils::is_device_in_bad_fork(device_type()); });
  m.def("_default_generator", &default_generator);
  m.def("_default_stream", [](c10::DeviceIndex device) { return hooks.getDefaultStream(device); });
  m.def("_current_raw_stream", [](c10::DeviceIndex device) { return hooks.getCurrentRawStream(device); });
  m.def("_memory_stats", [](c10::DeviceIndex device) { return owned(hooks.memoryStats(device)); });
  m.def("_device_capability", [](c10::DeviceIndex device) { return owned(hooks.getDeviceCapability(device)); });
  m.def("_device_properties", [](c10::DeviceIndex device) { return owned(hooks.getDeviceProperties(device)); });
  m.def("_record_memory_history", [](const std::optional<std::string>& enabled, const std::string& stacks,
                                     size_t max_entries) { hooks.recordMemoryHistory(enabled, stacks, max_entries); });
  m.def("_memory_snapshot", [] { return owned(hooks.memorySnapshot(std::nullopt)); });
  m.def("_attach_out_of_memory_observer",
        [](const py::object& observer) { hooks.attachOutOfMemoryObserver(observer.ptr()); });
  m.def("_graph_pool_handle", [] { return hooks.graphPoolHandle(); });
}

}  // namespace torch_mtia
