#include "site.h"

#include <c10/util/hash.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_compat.h>

#include "frames.h"

namespace torch_mtia {
namespace {

namespace py = pybind11;

// Of torch.nn.Module.__call__, whose first variable is the module.
PyCodeObject* code_of_call = nullptr;

size_t module_of(const py::object& frame) {
  const auto variables = py::reinterpret_steal<py::object>(PyObject_GetAttrString(frame.ptr(), "f_locals"));
  const auto module =
      py::reinterpret_steal<py::object>(variables ? PyMapping_GetItemString(variables.ptr(), "self") : nullptr);
  if (!module) PyErr_Clear();
  return reinterpret_cast<size_t>(module.ptr());
}

}  // namespace

void know_modules() {
  if (code_of_call != nullptr) return;
  const py::object call = py::module_::import("torch").attr("nn").attr("Module").attr("_wrapped_call_impl");
  code_of_call = reinterpret_cast<PyCodeObject*>(py::object(call.attr("__code__")).release().ptr());
}

uint64_t site_of_caller() {
  if (!can_ask_python()) return 0;
  const py::gil_scoped_acquire gil;
  size_t site = 0;
  auto frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* const of = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* const code = PyFrame_GetCode(of);
    Py_DECREF(code);  // the frame has it
    const auto instruction = static_cast<size_t>(PyFrame_GetLasti(of));
    site = c10::hash_combine(site, c10::hash_combine(reinterpret_cast<size_t>(code), instruction));
    if (code == code_of_call) site = c10::hash_combine(site, module_of(frame));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(of)));
  }
  return site;
}

}  // namespace torch_mtia
