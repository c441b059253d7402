// The results of graphs that torch.compile records.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_mtia {

// Adds GraphOutputs to the module.
void bind_graph_outputs(pybind11::module_& module);

}  // namespace torch_mtia
