// torch_mtia._C: bindings only. See torch_mtia/_C.pyi.
#include <ATen/ScalarOps.h>
#include <pybind11/complex.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <complex>

#include "../aten/BatchInvariant.h"
#include "../aten/Dtypes.h"
#include "../aten/Fallback.h"
#include "../core/Driver.h"
#include "../core/Waits.h"
#include "../device/DeviceType.h"
#include "../device/GraphOutputs.h"
#include "../device/HostView.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAGraph.h"
#include "../device/MTIAProfiler.h"
#include "../device/MTIAStream.h"
#include "../device/SharedBlock.h"
#include "../runtime/machine_memory.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

FallbackControl::Warn parse_warn(const std::string& mode) {
  if (mode == "never") return FallbackControl::Warn::kNever;
  if (mode == "once") return FallbackControl::Warn::kOnce;
  if (mode == "always") return FallbackControl::Warn::kAlways;
  throw py::value_error("the warning mode must be \"never\", \"once\" or \"always\", got \"" + mode + "\"");
}

py::dict driver_info() {
  const core::DriverInfo driver = core::driver_info();
  py::list capabilities;
#define MTIA_APPEND(name) \
  if (driver.can(MTIA_CAPABILITY_##name)) capabilities.append(py::str(#name).attr("lower")());
  MTIA_RUNTIME_CAPABILITIES(MTIA_APPEND)
#undef MTIA_APPEND
  py::dict info;
  info["name"] = driver.name;
  info["version"] = driver.version;
  info["abi_version"] = driver.abi_version;
  info["capabilities"] = capabilities;
  return info;
}

py::dict machine_memory() {
  const auto figures = runtime::MachineMemory().read();
  py::dict info;
  info["total"] = figures.total;
  info["available"] = figures.available;
  info["reserve"] = figures.reserve();
  info["has_limit"] = figures.has_limit;
  info["container"] = figures.container;
  return info;
}

// See HandledException.
const void* handled_python_exception(std::string* text) {
  if (!Py_IsInitialized()) return nullptr;
  const py::gil_scoped_acquire gil;
  PyObject *type, *value, *traceback;
  PyErr_GetExcInfo(&type, &value, &traceback);
  const auto own_type = py::reinterpret_steal<py::object>(type);
  const auto own_value = py::reinterpret_steal<py::object>(value);
  const auto own_traceback = py::reinterpret_steal<py::object>(traceback);
  if (!own_value || own_value.is_none()) return nullptr;
  if (text != nullptr) {
    *text = Py_TYPE(own_value.ptr())->tp_name;
    try {
      *text += ": " + std::string(py::str(own_value));
    } catch (const py::error_already_set&) {
      // Its type says enough.
    }
  }
  return own_value.ptr();
}

// What operators get for a Python number where they take a tensor.
at::Tensor wrapped_number(const py::object& value) {
  if (py::isinstance<py::bool_>(value)) return at::native::wrapped_scalar_tensor(value.cast<bool>());
  if (py::isinstance<py::int_>(value)) return at::native::wrapped_scalar_tensor(value.cast<int64_t>());
  if (py::isinstance<py::float_>(value)) return at::native::wrapped_scalar_tensor(value.cast<double>());
  return at::native::wrapped_scalar_tensor(c10::complex<double>(value.cast<std::complex<double>>()));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  core::hooks.release_interpreter_lock = []() -> void* {
    return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  };
  core::hooks.reacquire_interpreter_lock = [](void* state) {
    PyEval_RestoreThread(static_cast<PyThreadState*>(state));
  };
  core::hooks.handled_exception = &handled_python_exception;
  register_profiler();
  m.def("_configure", &configure, py::arg("library"), py::arg("num_devices"), py::arg("memory_per_device"),
        py::arg("launch_blocking"), py::arg("delay_seed"), py::arg("poison"), py::arg("log_launches"));
  m.def("_machine_memory", &machine_memory);
  m.def("_register_mtia", &register_mtia);
  m.def("_register_privateuse1", &register_privateuse1);
  m.def("_driver_info", &driver_info);
  m.def("_is_batch_invariant", &is_batch_invariant);
  m.def("_set_batch_invariant", &set_batch_invariant);
  m.def("_fallback_stats", &FallbackControl::stats);
  m.def("_fallback_reset", &FallbackControl::reset);
  m.def("_fallback_set_warn", [](const std::string& mode) { FallbackControl::set_warn(parse_warn(mode)); });
  m.def("_fallback_set_denied", &FallbackControl::set_denied);
  m.def("_fallback_forbid", &FallbackControl::forbid);
  m.def("_fallback_set_forced", [](const std::vector<std::pair<std::string, std::string>>& names) {
    std::vector<c10::OperatorName> operators;
    for (const auto& [name, overload] : names) operators.emplace_back(name, overload);
    FallbackControl::set_forced(operators);
  });
  m.def("_record_kernel_answers", &record_answers);
  m.def("_take_kernel_answers", [] {
    std::vector<std::tuple<std::string, std::string, bool>> result;
    for (KernelAnswer& answer : take_answers()) {
      result.emplace_back(std::move(answer.kernel), std::move(answer.dtypes), answer.refused);
    }
    return result;
  });
  m.def("_set_memory_fraction", [](double fraction, c10::DeviceIndex device) {
    MTIACachingAllocator::of(device).set_memory_fraction(fraction);
  });
  m.def("_memory_fraction", [](c10::DeviceIndex device) { return MTIACachingAllocator::of(device).memory_fraction(); });
  // Memory pools: see torch_mtia.memory.MemPool. The functions of a source are addresses, or 0.
  m.def("_new_pool", &MTIAGraph::new_pool_handle);
  m.def("_use_pool", [](c10::DeviceIndex device, c10::MempoolId_t pool, uint64_t allocate, uint64_t free) {
    core::BlockAllocator& allocator = MTIACachingAllocator::of(device);
    core::SegmentSource source;
    source.allocate = reinterpret_cast<decltype(source.allocate)>(allocate);
    source.free = reinterpret_cast<decltype(source.free)>(free);
    allocator.use_pool(pool);
    allocator.set_source(pool, source);
  });
  m.def("_release_pool", [](c10::DeviceIndex device, c10::MempoolId_t pool) {
    core::BlockAllocator& allocator = MTIACachingAllocator::of(device);
    allocator.release_pool(pool);
    allocator.empty_cache(pool);
  });
  m.def("_direct_thread_to_pool", [](c10::DeviceIndex device, c10::MempoolId_t pool) {
    return MTIACachingAllocator::of(device).direct_thread_to_pool(pool);
  });
  m.def("_end_direction_to_pool", [](c10::DeviceIndex device, core::DirectionId direction) {
    MTIACachingAllocator::of(device).end_direction(direction);
  });
  // Storages that processes share: see torch_mtia/multiprocessing.py.
  using Message = std::tuple<pid_t, int, uint64_t>;
  m.def(
      "_send_storage",
      [](const c10::Storage& storage) -> std::optional<Message> {
        const auto shared = send_storage(storage.unsafeGetStorageImpl());
        return shared ? std::optional(Message{shared->process, shared->descriptor, shared->name}) : std::nullopt;
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("_receive_storage", [](const Message& message, c10::DeviceIndex device, size_t size) {
    const auto [process, descriptor, name] = message;
    return c10::Storage(receive_storage({process, descriptor, name}, device, size));
  });
  m.def("_receive_again", [](const c10::Storage& storage) { receive_again(*storage.unsafeGetStorageImpl()); });
  m.def("_num_unreceived", &num_unreceived);
  // The caller waits for the work that writes there.
  m.def("_host_address", [](uint64_t device_address) {
    TORCH_CHECK_NOT_IMPLEMENTED(HostView::available(),
                                "the driver gives the host no view of the device's memory; tensor.cpu() copies it");
    return reinterpret_cast<uint64_t>(HostView::to_host(reinterpret_cast<void*>(device_address)));
  });
  m.def("_is_stream_capturing", [](int64_t stream_id, c10::DeviceIndex device) {
    return MTIAStream(c10::Stream::unpack3(stream_id, device, device_type())).core().graph() != nullptr;
  });
  // Why what the stream is being captured in is incomplete; empty: it is not, or there is no capture.
  m.def("_capture_refusal", [](int64_t stream_id, c10::DeviceIndex device) {
    const MTIAGraph* graph = MTIAGraph::of(MTIAStream(c10::Stream::unpack3(stream_id, device, device_type())));
    return graph != nullptr ? graph->invalid_reason() : std::string();
  });
  m.def("_recording_stream", [](c10::DeviceIndex device) { return MTIAStream::for_recording(device).unwrap(); });
  // For what is timed: the sanitizer does not take it for a wait of the program.
  m.def("_wait_unobserved", [](c10::DeviceIndex device) {
    MTIAGraph::refuse_on_devices("a measurement");
    MTIAStream::synchronize_all(index_or_current(device));
  });
  m.def("_wait_for_other_streams", [](c10::DeviceIndex device) { MTIAStream::current(device).wait_for_others(); });
  bind_hooks(m);
  bind_distributed(m);
  bind_triton_launch(m);
  bind_generated_code(m);
  bind_prepared_call(m);
  bind_sanitizer(m);
  py::class_<GraphOutputs>(m, "GraphOutputs")
      .def(py::init<std::vector<at::Tensor>, c10::MempoolId_t>(), py::arg("tensors"), py::arg("pool"))
      .def("move_away", &GraphOutputs::move_away)
      .def("hand_out", &GraphOutputs::hand_out)
      .def_static("captured", &GraphOutputs::captured, py::arg("tensor"));
  bind_host_function(m);
  m.def("_wrapped_number", &wrapped_number);
}

}  // namespace torch_mtia
