// What generated code calls, and what Dynamo's code calls before a graph: builtin functions in place of Python's, which
// take longer than a small kernel.
#include <ATen/core/Tensor.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>

#include <array>

#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// DeviceGuard(index) --------------------------------------------------------------------------------------------------

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

PyObject* make_guard_type() {
  static std::array<PyMethodDef, 3> methods{
      PyMethodDef{"__enter__", guard_enter, METH_NOARGS, nullptr},
      PyMethodDef{"__exit__", reinterpret_cast<PyCFunction>(&guard_exit), METH_FASTCALL, nullptr}, PyMethodDef{}};
  static std::array<PyType_Slot, 4> slots{PyType_Slot{Py_tp_new, reinterpret_cast<void*>(&guard_new)},
                                          PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(&guard_dealloc)},
                                          PyType_Slot{Py_tp_methods, methods.data()}, PyType_Slot{}};
  static PyType_Spec spec{"torch_mtia._C.DeviceGuard", sizeof(PyDeviceGuard), 0, Py_TPFLAGS_DEFAULT, slots.data()};
  return PyType_FromSpec(&spec);
}

// _empty_strided(sizes, strides, dtype) -------------------------------------------------------------------------------

using Sizes = c10::SmallVector<int64_t, 8>;

Sizes unpack(PyObject* tuple, const char* name) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "_empty_strided_mtia(): ", name, " must be a tuple of int, not ",
                   Py_TYPE(tuple)->tp_name);
  Sizes values(static_cast<size_t>(PyTuple_GET_SIZE(tuple)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = THPUtils_unpackLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
  }
  return values;
}

PyObject* empty_strided(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 3, "_empty_strided_mtia() takes sizes, strides and a dtype, got ", count, " arguments");
  TORCH_CHECK_TYPE(THPDtype_Check(args[2]), "_empty_strided_mtia(): dtype must be a torch.dtype, not ",
                   Py_TYPE(args[2])->tp_name);
  const Sizes sizes = unpack(args[0], "sizes");
  const Sizes strides = unpack(args[1], "strides");
  const auto options = at::TensorOptions().dtype(reinterpret_cast<THPDtype*>(args[2])->scalar_type);
  return THPVariable_Wrap(at::Tensor(at::detail::empty_strided_mtia(sizes, strides, options)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef empty_strided_method{"_empty_strided_mtia",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&empty_strided)), METH_FASTCALL,
                                 "_empty_strided_mtia(sizes, strides, dtype): a tensor on the current mtia device."};

// Functions of Dynamo. Each keeps, as what it is bound to, upstream's function and what else it needs. Of builtin
// functions Dynamo has nothing to trace either.
// ---------------------------------------------------------------------------------------------------------------------

py::object bound_method(PyMethodDef& method, const py::object& to) {
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

PyMethodDef get_current_stream_method{"get_current_stream", &get_current_stream, METH_O, nullptr};
PyMethodDef store_weak_references_method{"store_user_object_weakrefs",
                                         reinterpret_cast<PyCFunction>(&store_weak_references), METH_FASTCALL, nullptr};

}  // namespace

void bind_generated_code(py::module_& module) {
  PyObject* guard = make_guard_type();
  if (guard == nullptr) throw py::error_already_set();
  module.attr("DeviceGuard") = py::reinterpret_steal<py::object>(guard);
  module.attr("_empty_strided") =
      py::reinterpret_steal<py::object>(PyCFunction_NewEx(&empty_strided_method, nullptr, nullptr));
  module.def("_make_get_current_stream",
             [](const py::function& original) { return bound_method(get_current_stream_method, original); });
  module.def("_make_store_weak_references",
             [](const py::dict& table) { return bound_method(store_weak_references_method, table); });
}

}  // namespace torch_mtia
