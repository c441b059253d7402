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

// Options that can be copied.
struct BackendOptions : c10d::Backend::Options {
  explicit BackendOptions(const Options& options) : Options(options) {}
};

// At the first call: the base class belongs to a module that a PyTorch without torch.distributed lacks.
void bind_stream_backend(py::module_& module) {
  if (py::hasattr(module, "StreamBackend")) return;
  const auto base = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<BackendOptions, c10::intrusive_ptr<BackendOptions>>(module, "BackendOptions", base.attr("Options"))
      .def("__deepcopy__", [](const BackendOptions& options, const py::dict& /*memo*/) {
        return c10::make_intrusive<BackendOptions>(options);
      });
  py::class_<StreamBackend, c10::intrusive_ptr<StreamBackend>>(module, "StreamBackend", base)
      .def(py::init([](c10::intrusive_ptr<c10d::Backend> engine, std::string name, std::chrono::milliseconds timeout) {
             return c10::make_intrusive<StreamBackend>(std::move(engine), std::move(name), timeout);
           }),
           py::arg("engine"), py::arg("name"), py::arg("timeout"))
      // torch.distributed copies the parent's options for each group that it splits off, and tells the ranks outside of
      // a new group that others make it. Nothing is shared that they would have to do.
      .def_property_readonly(
          "options",
          [](StreamBackend& backend) { return c10::make_intrusive<BackendOptions>(*backend.getBackendOptions()); })
      .def("perform_nocolor_split", [](StreamBackend& /*backend*/, const py::object& /*device*/) {});
}

}  // namespace

void bind_distributed(py::module_& module) {
  module.def("_bind_stream_backend", [module]() mutable { bind_stream_backend(module); });
}

}  // namespace torch_mtia
