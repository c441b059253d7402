#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <utility>

#include <pybind11/chrono.h>

#include "../distributed/StreamBackend.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// At the first call: the base class belongs to a module that a PyTorch without torch.distributed lacks.
void bind_stream_backend(py::module_& module) {
  if (py::hasattr(module, "StreamBackend")) return;
  const auto base = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<StreamBackend, c10::intrusive_ptr<StreamBackend>>(module, "StreamBackend", base)
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> engine, std::string name, std::chrono::milliseconds timeout) {
             return c10::make_intrusive<StreamBackend>(std::move(engine), std::move(name), timeout);
           }),
           py::arg("engine"), py::arg("name"), py::arg("timeout"));
}

}  // namespace

void bind_distributed(py::module_& module) {
  module.def("_bind_stream_backend", [module]() mutable { bind_stream_backend(module); });
}

}  // namespace torch_mtia
