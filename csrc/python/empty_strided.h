// How code that Inductor generates allocates: see torch/_inductor/codegen/wrapper.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_mtia {

// Adds _empty_strided(sizes, strides, dtype) to the module: torch.empty_strided on the current device, quicker, with
// no Python arguments to parse but tuples of ints and a dtype.
void bind_empty_strided(pybind11::module_& module);

}  // namespace torch_mtia
