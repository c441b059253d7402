// What torch_mtia._C is made of: each function adds to the module what its file defines.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_mtia {

// _bind_stream_backend(): adds StreamBackend(engine, name, timeout), a backend of process groups.
void bind_distributed(pybind11::module_& module);

// DeviceGuard(index): the device that is current within a `with` statement of generated code.
//
// _empty_strided(sizes, strides, dtype), with which code that Inductor generates allocates (wrapper.py in
// torch/_inductor/codegen): torch.empty_strided on the current device, quicker, with no Python arguments to parse but
// tuples of ints and a dtype.
//
// _make_get_current_stream and others, which make functions that Dynamo calls before a graph.
void bind_generated_code(pybind11::module_& module);

// _set_device_properties_type(type): getDeviceProperties returns type(dict of the properties). And what
// torch_mtia/device_module.py has neither of torch.accelerator nor of torch._C._mtia_*.
void bind_hooks(pybind11::module_& module);

// _launch_host_function: Python functions as work of a stream.
void bind_host_function(pybind11::module_& module);

// PreparedCall, see torch_mtia/inductor/prepared_call.py.
void bind_prepared_call(pybind11::module_& module);

// _sanitizer_start, _sanitizer_stop and _sanitizer_take, see torch_mtia/sanitizer.
void bind_sanitizer(pybind11::module_& module);

// Kernel and _make_launcher, of which Triton's driver for mtia is made, and what torch_mtia/inductor/fast_launcher.py
// is made of.
void bind_triton_launch(pybind11::module_& module);

}  // namespace torch_mtia
