// The Python types that Triton's driver for mtia is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_mtia {

// Adds Kernel and KernelLauncher to the module.
void bind_triton_launcher(pybind11::module_& module);

}  // namespace torch_mtia
