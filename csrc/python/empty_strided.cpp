#include "bindings.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_numbers.h>

namespace torch_mtia {
namespace {

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

PyMethodDef method{"_empty_strided_mtia", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&empty_strided)),
                   METH_FASTCALL, "_empty_strided_mtia(sizes, strides, dtype): a tensor on the current mtia device."};

}  // namespace

void bind_empty_strided(pybind11::module_& module) {
  module.attr("_empty_strided") =
      pybind11::reinterpret_steal<pybind11::object>(PyCFunction_NewEx(&method, nullptr, nullptr));
}

}  // namespace torch_mtia
