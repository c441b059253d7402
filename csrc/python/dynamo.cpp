// What the code that Dynamo makes of a function calls at every call, before the graph. Upstream's are Python functions,
// which take longer than a small kernel; of builtin functions Dynamo has nothing to trace either. Each keeps, as what
// it is bound to, upstream's function and what else it needs.
#include <pybind11/pybind11.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Stream.h>

#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

py::object bound(PyMethodDef& method, const py::object& to) {
  auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&method, to.ptr()));
  if (!function) throw py::error_already_set();
  return function;
}

// torch._dynamo.utils.get_current_stream, which is called where there is an accelerator.
PyObject* get_current_stream(PyObject* original, PyObject* device) {
  HANDLE_TH_ERRORS
  if (!THPDevice_Check(device)) return PyObject_CallOneArg(original, device);
  const c10::Device wanted = reinterpret_cast<THPDevice*>(device)->device;
  if (wanted.type() != device_type() || !wanted.has_index()) return PyObject_CallOneArg(original, device);
  check_device_index(wanted.index());
  ensure_initialized();
  return THPStream_Wrap(MTIAStream::current(wanted.index()).unwrap());
  END_HANDLE_TH_ERRORS
}

// torch._dynamo.graph_bytecode_inputs.store_user_object_weakrefs, with that module's table.
PyObject* store_weak_references(PyObject* table, PyObject* const* objects, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  PyDict_Clear(table);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyDict_SetItem(table, py::int_(i).ptr(), py::weakref(objects[i]).ptr()) != 0) throw python_error();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// torch._dynamo.utils.record_pregraph_bytecode_enter and _exit: None, where the profiler does not record.
PyObject* record_enter(PyObject* original_and_profiler, PyObject* /*unused*/) {
  static PyObject* const name = PyUnicode_InternFromString("_is_profiler_enabled");
  PyObject* is_enabled = PyDict_GetItemWithError(PyTuple_GET_ITEM(original_and_profiler, 1), name);
  if (is_enabled == Py_False) Py_RETURN_NONE;
  return PyObject_CallNoArgs(PyTuple_GET_ITEM(original_and_profiler, 0));
}

PyObject* record_exit(PyObject* original, PyObject* record) {
  if (record == Py_None) Py_RETURN_NONE;
  return PyObject_CallOneArg(original, record);
}

PyMethodDef get_current_stream_method{"get_current_stream", &get_current_stream, METH_O, nullptr};
PyMethodDef store_weak_references_method{"store_user_object_weakrefs",
                                         reinterpret_cast<PyCFunction>(&store_weak_references), METH_FASTCALL, nullptr};
PyMethodDef record_enter_method{"record_pregraph_bytecode_enter", &record_enter, METH_NOARGS, nullptr};
PyMethodDef record_exit_method{"record_pregraph_bytecode_exit", &record_exit, METH_O, nullptr};

}  // namespace

void bind_dynamo(py::module_& module) {
  module.def("_make_get_current_stream",
             [](const py::function& original) { return bound(get_current_stream_method, original); });
  module.def("_make_record_enter", [](const py::function& original, const py::dict& profiler) {
    return bound(record_enter_method, py::make_tuple(original, profiler));
  });
  module.def("_make_record_exit", [](const py::function& original) { return bound(record_exit_method, original); });
  module.def("_make_store_weak_references",
             [](const py::dict& table) { return bound(store_weak_references_method, table); });
}

}  // namespace torch_mtia
