// Python functions as work of a stream.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_mtia {

// Adds _launch_host_function to the module.
void bind_host_function(pybind11::module_& module);

}  // namespace torch_mtia
