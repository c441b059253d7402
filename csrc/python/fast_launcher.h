// Launching a kernel of generated code once its configuration is chosen.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <vector>

#include "triton_launcher.h"

namespace torch_mtia {

// The builtin function with which a kernel of generated code, a CachingAutotuner, is launched when called with `count`
// arguments beside the stream. Null: its Python method `run` has more to do, as no configuration is chosen yet, or
// somebody watches launches or has replaced the method.
pybind11::object fast_launcher_of(PyObject* autotuner, size_t count);

// With as many values as it was asked for. Raises in Python and returns false for what does not fit.
bool launch(const pybind11::object& fast_launcher, const ArgumentValue* values, PyObject* stream);

std::vector<pybind11::object> as_objects(const ArgumentValue* values, size_t count);

}  // namespace torch_mtia
