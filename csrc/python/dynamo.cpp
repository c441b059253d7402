// What the code that Dynamo makes of a function calls at every call, before the graph. Upstream's are Python functions,
// which take longer than a small kernel; of builtin functions Dynamo has nothing to trace either.
#include <pybind11/pybind11.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Stream.h>

#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// torch._dynamo.utils.get_current_stream, which is called where there is an accelerator.
py::object make_get_current_stream(py::object original) {
  return py::cpp_function([original = std::move(original)](const py::object& device) -> py::object {
    if (!THPDevice_Check(device.ptr())) return original(device);
    const c10::Device wanted = reinterpret_cast<THPDevice*>(device.ptr())->device;
    if (wanted.type() != device_type() || !wanted.has_index()) return original(device);
    check_device_index(wanted.index());
    ensure_initialized();
    return py::reinterpret_steal<py::object>(THPStream_Wrap(MTIAStream::current(wanted.index()).unwrap()));
  });
}

// torch._dynamo.graph_bytecode_inputs.store_user_object_weakrefs, with that module's table.
py::object make_store_weak_references(py::dict table) {
  return py::cpp_function([table = std::move(table)](const py::args& objects) mutable {
    table.clear();
    for (size_t i = 0; i < objects.size(); ++i) table[py::int_(i)] = py::weakref(objects[i]);
  });
}

// torch._dynamo.utils.record_pregraph_bytecode_enter and _exit: None, where the profiler does not record.
py::object make_record_enter(py::object original, py::dict profiler) {
  return py::cpp_function([original = std::move(original), profiler = std::move(profiler)]() -> py::object {
    return py::bool_(profiler["_is_profiler_enabled"]) ? original() : py::none();
  });
}

py::object make_record_exit(py::object original) {
  return py::cpp_function([original = std::move(original)](const py::object& record) {
    if (!record.is_none()) original(record);
  });
}

}  // namespace

void bind_dynamo(py::module_& module) {
  module.def("_make_get_current_stream", &make_get_current_stream);
  module.def("_make_record_enter", &make_record_enter);
  module.def("_make_record_exit", &make_record_exit);
  module.def("_make_store_weak_references", &make_store_weak_references);
}

}  // namespace torch_mtia
