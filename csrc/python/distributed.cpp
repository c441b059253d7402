#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <utility>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "../distributed/StreamBackend.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// With a copy, which split_group makes; PyTorch's own have none.
struct StreamOptions final : c10d::Backend::Options {
  explicit StreamOptions(const Options& options) : Options(options) {}
};

// At the first call: the base class belongs to a module that a PyTorch without torch.distributed lacks.
void bind_stream_backend(py::module_& module) {
  if (py::hasattr(module, "StreamBackend")) return;
  const auto base = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<StreamOptions, c10::intrusive_ptr<StreamOptions>>(module, "StreamOptions", base.attr("Options"))
      .def("__deepcopy__", [](const StreamOptions& self, const py::dict& /*memo*/) {
        return c10::make_intrusive<StreamOptions>(self);
      });
  py::class_<StreamBackend, c10::intrusive_ptr<StreamBackend>>(module, "StreamBackend", base)
      // Waits for the other ranks, which may be threads of this process.
      .def(py::init([](GlooMaker make_gloo, const std::string& machine, c10::intrusive_ptr<c10d::Store> store, int rank,
                       int size, std::string name, std::chrono::milliseconds timeout) {
             return c10::make_intrusive<StreamBackend>(engine_maker(std::move(make_gloo), machine), std::move(store),
                                                       rank, size, std::move(name), timeout);
           }),
           py::arg("make_gloo"), py::arg("machine"), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("name"), py::arg("timeout"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly(
          "options", [](StreamBackend& self) { return c10::make_intrusive<StreamOptions>(*self.getBackendOptions()); })
      .def("_set_default_timeout", &StreamBackend::setTimeout, py::arg("timeout"))
      // Ranks that a new group leaves out have nothing to do for it.
      .def("perform_nocolor_split", [](StreamBackend& /*self*/, const py::object& /*device*/) {})
      .def("records", [](StreamBackend& self) {
        py::list list;
        for (const auto& state : self.records()) {
          const CallRecord& call = state->call;
          py::dict record;
          record["rank"] = call.rank;
          record["operation"] = call.name;
          record["sequence_number"] = call.sequence_number;
          record["sizes"] = call.sizes;
          record["dtype"] = call.dtype;
          record["state"] = state->state();
          list.append(std::move(record));
        }
        return list;
      });
}

}  // namespace

void bind_distributed(py::module_& module) {
  module.def("_bind_stream_backend", [module]() mutable { bind_stream_backend(module); });
}

}  // namespace torch_mtia
