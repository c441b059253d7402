#include <torch/csrc/Exceptions.h>

#include <array>

#include "../device/DeviceIndex.h"
#include "../device/MTIAFunctions.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

struct PyDeviceGuard {
  PyObject_HEAD c10::DeviceIndex index;
  c10::DeviceIndex before;
};

PyObject* guard_new(PyTypeObject* type, PyObject* args, PyObject* /*keywords*/) {
  HANDLE_TH_ERRORS
  int index = 0;
  if (PyArg_ParseTuple(args, "i:DeviceGuard", &index) == 0) return nullptr;
  check_device_index(to_device_index(index));
  auto* self = reinterpret_cast<PyDeviceGuard*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->index = static_cast<c10::DeviceIndex>(index);
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* guard_enter(PyObject* object, PyObject* /*unused*/) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<PyDeviceGuard*>(object);
  self->before = exchange_device(self->index);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* guard_exit(PyObject* object, PyObject* const* /*error*/, Py_ssize_t /*count*/) {
  HANDLE_TH_ERRORS
  maybe_exchange_device(reinterpret_cast<PyDeviceGuard*>(object)->before);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void guard_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace

void bind_device_guard(py::module_& module) {
  static std::array<PyMethodDef, 3> methods{
      PyMethodDef{"__enter__", guard_enter, METH_NOARGS, nullptr},
      PyMethodDef{"__exit__", reinterpret_cast<PyCFunction>(&guard_exit), METH_FASTCALL, nullptr}, PyMethodDef{}};
  static std::array<PyType_Slot, 4> slots{PyType_Slot{Py_tp_new, reinterpret_cast<void*>(&guard_new)},
                                          PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(&guard_dealloc)},
                                          PyType_Slot{Py_tp_methods, methods.data()}, PyType_Slot{}};
  static PyType_Spec spec{"torch_mtia._C.DeviceGuard", sizeof(PyDeviceGuard), 0, Py_TPFLAGS_DEFAULT, slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.attr("DeviceGuard") = py::reinterpret_steal<py::object>(type);
}

}  // namespace torch_mtia
