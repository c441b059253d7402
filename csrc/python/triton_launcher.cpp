#include "bindings.h"

#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "../core/Waits.h"
#include "../device/DeviceIndex.h"
#include "../device/MTIAKernel.h"
#include "triton_launcher.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// Kernel: what Triton calls a module, and the function in it.
// ----------------------------------------------------------

struct PyKernel {
  PyObject_HEAD std::shared_ptr<const MTIAKernel> kernel;  // null: unloaded
};

PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static constexpr std::array<const char*, 4> kKeywords{"name", "image", "device", nullptr};
  const char* name = nullptr;
  PyObject* image = nullptr;
  int device = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "sSi:Kernel", const_cast<char**>(kKeywords.data()), &name, &image,
                                  &device) == 0) {
    return nullptr;
  }
  const std::string_view bytes(PyBytes_AS_STRING(image), static_cast<size_t>(PyBytes_GET_SIZE(image)));
  check_device_index(to_device_index(device));
  auto kernel = std::make_shared<const MTIAKernel>(static_cast<c10::DeviceIndex>(device), name, bytes);
  auto* self = reinterpret_cast<PyKernel*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  std::construct_at(&self->kernel, std::move(kernel));
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void kernel_dealloc(PyObject* object) {
  std::destroy_at(&reinterpret_cast<PyKernel*>(object)->kernel);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* kernel_unload(PyObject* object, PyObject* /*unused*/) {
  reinterpret_cast<PyKernel*>(object)->kernel.reset();
  Py_RETURN_NONE;
}

PyObject* kernel_repr(PyObject* object) {
  const auto& kernel = reinterpret_cast<PyKernel*>(object)->kernel;
  if (kernel == nullptr) return PyUnicode_FromString("<kernel, unloaded>");
  return PyUnicode_FromFormat("<kernel %s on %s>", kernel->name().c_str(), device_name(kernel->device()).c_str());
}

PyTypeObject* make_kernel_type() {
  static std::array<PyMethodDef, 2> methods{
      PyMethodDef{"unload", kernel_unload, METH_NOARGS, "Frees the kernel. Launching it raises from now on."},
      PyMethodDef{}};
  static std::array<PyType_Slot, 6> slots{
      PyType_Slot{Py_tp_new, reinterpret_cast<void*>(&kernel_new)},
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(&kernel_dealloc)},
      PyType_Slot{Py_tp_repr, reinterpret_cast<void*>(&kernel_repr)},
      PyType_Slot{Py_tp_methods, methods.data()},
      PyType_Slot{Py_tp_doc, const_cast<char*>("Kernel(name, image, device): a kernel image, loaded on a device.")},
      PyType_Slot{}};
  static PyType_Spec spec{"torch_mtia._C.Kernel", sizeof(PyKernel), 0, Py_TPFLAGS_DEFAULT, slots.data()};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

PyTypeObject* kernel_type = nullptr;

// KernelLauncher: what Triton calls with the arguments of a launch.
// ----------------------------------------------------

struct PyKernelLauncher {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* specification;  // keeps what the layout borrows
  ArgumentLayout* layout;   // owned
};

PyTypeObject* launcher_type = nullptr;

// The arguments before those of the kernel.
enum LaunchArgument : size_t {
  kGridX,
  kGridY,
  kGridZ,
  kStream,
  kFunction,
  kPackedMetadata,
  kLaunchMetadata,
  kEnterHook,
  kExitHook,
  kFirstKernelArgument
};

bool call_hook(PyObject* hook, PyObject* metadata) {
  if (is_empty_hook(hook)) return true;
  PyObject* result = PyObject_CallOneArg(hook, metadata);
  Py_XDECREF(result);
  return result != nullptr;
}

}  // namespace

bool is_empty_hook(PyObject* hook) {
  if (hook == Py_None) return true;
  static PyObject* const name = PyUnicode_InternFromString("calls");
  PyObject* calls = PyObject_GetAttr(hook, name);
  if (calls == nullptr) PyErr_Clear();
  const bool empty = calls != nullptr && PyList_CheckExact(calls) && PyList_GET_SIZE(calls) == 0;
  Py_XDECREF(calls);
  return empty;
}

bool read_grid(PyObject* const* args, Grid& grid) {
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    int overflow = 0;
    const long size = PyLong_AsLongAndOverflow(args[kGridX + axis], &overflow);
    if (size == -1 && PyErr_Occurred() != nullptr) return false;
    if (overflow != 0 || size < 0 || size > std::numeric_limits<int32_t>::max()) {
      PyErr_Format(PyExc_ValueError, "the grid's size %S in dimension %zu is not in [0, 2**31 - 1]",
                   args[kGridX + axis], axis);
      return false;
    }
    grid[axis] = static_cast<int32_t>(size);
  }
  return true;
}

namespace {

std::shared_ptr<const MTIAKernel> read_kernel(PyObject* function) {
  if (Py_TYPE(function) != kernel_type) {
    PyErr_Format(PyExc_TypeError, "the function of a launch on mtia is a torch_mtia._C.Kernel, not %s",
                 Py_TYPE(function)->tp_name);
    return nullptr;
  }
  const auto& kernel = reinterpret_cast<PyKernel*>(function)->kernel;
  if (kernel == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "this kernel was unloaded and cannot be launched any more; compile it again");
  }
  return kernel;
}

// The stream of the handle that torch._C._mtia_getCurrentRawStream returns.
std::optional<MTIAStream> read_stream(PyObject* value, c10::DeviceIndex device) {
  const void* handle = PyLong_AsVoidPtr(value);
  if (handle == nullptr && PyErr_Occurred() != nullptr) return std::nullopt;
  const MTIAStream current = MTIAStream::current(device);
  if (current.core().handle() == handle) [[likely]]
    return current;
  if (auto other = MTIAStream::find(device, handle)) return other;
  PyErr_Format(PyExc_ValueError, "%R is not the handle of a stream of %s, where the kernel was loaded", value,
               device_name(device).c_str());
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const MTIAKernel> loaded_kernel(PyObject* function) {
  return Py_TYPE(function) == kernel_type ? reinterpret_cast<PyKernel*>(function)->kernel : nullptr;
}

bool launch_kernel(const ArgumentLayout& layout, const Grid& grid, PyObject* stream_handle, PyObject* function,
                   const ArgumentValue* values, size_t count) {
  const auto kernel = read_kernel(function);  // another thread may unload it as soon as this one gives up the GIL
  if (kernel == nullptr) return false;
  const auto stream = read_stream(stream_handle, kernel->device());
  if (!stream) return false;
  PackedArguments packed;
  if (!layout.pack(values, count, {device_type(), kernel->device()}, packed)) return false;
  const core::WithoutGil without_gil;  // small kernels run in here
  kernel->launch(*stream, grid, packed.bytes.data(), layout.size());
  return true;
}

const ArgumentLayout* layout_of(PyObject* launcher) {
  if (Py_TYPE(launcher) == launcher_type) return reinterpret_cast<PyKernelLauncher*>(launcher)->layout;
  PyErr_Format(PyExc_TypeError, "expected a torch_mtia._C.KernelLauncher, not %s", Py_TYPE(launcher)->tp_name);
  return nullptr;
}

namespace {

bool launch(const ArgumentLayout& layout, PyObject* const* args, size_t count) {
  Grid grid{};
  if (!read_grid(args, grid)) return false;
  c10::SmallVector<ArgumentValue, 64> values;
  for (size_t i = kFirstKernelArgument; i < count; ++i) values.push_back({args[i]});
  return launch_kernel(layout, grid, args[kStream], args[kFunction], values.data(), values.size());
}

PyObject* launcher_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const ArgumentLayout& layout = *reinterpret_cast<PyKernelLauncher*>(object)->layout;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (count < kFirstKernelArgument || (keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0)) {
    PyErr_Format(PyExc_TypeError, "a launch takes %zu arguments by position and then those of the kernel, got %zu",
                 static_cast<size_t>(kFirstKernelArgument), count);
    return nullptr;
  }
  if (!call_hook(args[kEnterHook], args[kLaunchMetadata]) || !launch(layout, args, count) ||
      !call_hook(args[kExitHook], args[kLaunchMetadata])) {
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* launcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static constexpr std::array<const char*, 2> kKeywords{"arguments", nullptr};
  PyObject* specification = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O:KernelLauncher", const_cast<char**>(kKeywords.data()),
                                  &specification) == 0) {
    return nullptr;
  }
  auto layout = std::make_unique<ArgumentLayout>();
  if (!layout->parse(specification)) return nullptr;
  auto* self = reinterpret_cast<PyKernelLauncher*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = launcher_call;
  Py_INCREF(specification);
  self->specification = specification;
  self->layout = layout.release();
  return reinterpret_cast<PyObject*>(self);
}

void launcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<PyKernelLauncher*>(object);
  const std::unique_ptr<ArgumentLayout> layout(self->layout);
  Py_XDECREF(self->specification);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyTypeObject* make_launcher_type() {
  static std::array<PyMemberDef, 2> members{
      PyMemberDef{"__vectorcalloffset__", T_PYSSIZET, offsetof(PyKernelLauncher, vectorcall), READONLY, nullptr},
      PyMemberDef{}};
  static std::array<PyType_Slot, 6> slots{
      PyType_Slot{Py_tp_new, reinterpret_cast<void*>(&launcher_new)},
      PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(&launcher_dealloc)},
      PyType_Slot{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
      PyType_Slot{Py_tp_members, members.data()},
      PyType_Slot{Py_tp_doc,
                  const_cast<char*>("KernelLauncher(arguments): packs and launches, see torch_mtia.triton.launch.")},
      PyType_Slot{}};
  static PyType_Spec spec{"torch_mtia._C.KernelLauncher", sizeof(PyKernelLauncher), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots.data()};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

void bind_triton_launcher(py::module_& module) {
  kernel_type = make_kernel_type();
  launcher_type = make_launcher_type();
  if (kernel_type == nullptr || launcher_type == nullptr) throw py::error_already_set();
  module.attr("Kernel") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(kernel_type));
  module.attr("KernelLauncher") = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(launcher_type));
  module.def("_set_check_bounds", &MTIAKernel::set_check_bounds);
}

}  // namespace torch_mtia
