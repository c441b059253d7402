#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_mtia {

// What torch_mtia/device_module.py is made of: of torch._C._mtia_*, which are for the type mtia only, the part that
// torch.accelerator does not have.
void bind_device_module(pybind11::module& m);

}  // namespace torch_mtia
