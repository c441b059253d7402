// Launching a kernel from Python objects.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "../device/MTIAKernel.h"
#include "packed_arguments.h"

namespace torch_mtia {

using Grid = std::array<int32_t, 3>;

// Whether there is nothing to call before or behind a launch. Triton passes a chain of hooks at every one, nearly
// always an empty one; calling it would take longer than all the rest of the launch.
bool is_empty_hook(PyObject* hook);

// The first three values. Raises ValueError in Python and returns false for what is no size of a grid.
bool read_grid(PyObject* const* values, Grid& grid);

// The layout of a torch_mtia._C.KernelLauncher. Null: raised TypeError in Python.
const ArgumentLayout* layout_of(PyObject* launcher);

// The kernel of a torch_mtia._C.Kernel, which outlives it for the holder; null: it was unloaded.
std::shared_ptr<const MTIAKernel> loaded_kernel(PyObject* function);

// Launches a torch_mtia._C.Kernel in the stream of a handle, with one value for each argument of the layout. Raises in
// Python and returns false for what does not fit.
bool launch_kernel(const ArgumentLayout& layout, const Grid& grid, PyObject* stream_handle, PyObject* function,
                   const ArgumentValue* values, size_t count);

}  // namespace torch_mtia
