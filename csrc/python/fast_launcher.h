// Launching kernels of generated code.
#pragma once

#include <Python.h>

#include <cstddef>

#include "packed_arguments.h"

namespace torch_mtia {

// What `autotuner.run(*values, stream=stream)` of a CachingAutotuner does. Raises in Python, or as C++ does, and
// returns false for what does not fit.
bool run_kernel(PyObject* autotuner, const ArgumentValue* values, size_t count, PyObject* stream);

}  // namespace torch_mtia
