// The hooks that PyTorch gets: MTIAHooks, and the functions of at::MTIAHooksInterface whose arguments or results are
// Python's. torch_mtia/device_module.py calls them through torch._C._mtia_*, for either device type.
#include <c10/core/AllocatorConfig.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "../core/Driver.h"
#include "../core/Stream.h"
#include "../device/MTIAHooks.h"
#include "../runtime/loader.h"
#include "bindings.h"
#include "place.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// torch.mtia's own initialization, which tells it of its device's. Without it, FakeTensorMode takes the first device
// for the current one.
void initialize_module() {
  const py::gil_scoped_acquire gil;
  py::module_::import("torch.mtia").attr("_lazy_init")();
}

struct PythonHooks final : public MTIAHooks {
  // To select a device initializes it, as for CUDA.
  void setCurrentDevice(c10::DeviceIndex device) const override {
    initialize_module();
    MTIAHooks::setCurrentDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    if (device >= 0) initialize_module();
    return MTIAHooks::maybeExchangeDevice(device);
  }

  PyObject* memoryStats(c10::DeviceIndex device) const override;
  PyObject* getDeviceCapability(c10::DeviceIndex device) const override;
  PyObject* getDeviceProperties(c10::DeviceIndex device) const override;

  // For PyTorch's memory viewer. Raises ValueError for an `enabled` that is not
  // none, "state" or "all", and `stacks` that are not "python" or "all"; 0 entries: no limit.
  void recordMemoryHistory(const std::optional<std::string>& enabled, const std::string& stacks,
                           size_t max_entries) const override;
  // The dict that torch.cuda._memory_viz reads. With a path it is pickled there too.
  PyObject* memorySnapshot(const std::optional<std::string>& path) const override;
  // `observer(device, requested bytes, total bytes, free bytes)` is called before an OutOfMemoryError is raised.
  void attachOutOfMemoryObserver(PyObject* observer) const override;
};

mtia_device_properties properties_of(c10::DeviceIndex device) {
  device = index_or_current(device);
  ensure_initialized();
  return core::device_properties(device);
}

// Leaked: it may be asked for while the interpreter ends.
py::object& device_properties_type() {
  static auto* const type = new py::object(py::none());
  return *type;
}

// Memory history ------------------------------------------------------------------------------------------------------

using torch::CapturedTraceback;

const char* name_of(core::TraceAction action) {
  switch (action) {
    case core::TraceAction::kAlloc:
      return "alloc";
    case core::TraceAction::kFreeRequested:
      return "free_requested";
    case core::TraceAction::kFreeCompleted:
      return "free_completed";
    case core::TraceAction::kSegmentAlloc:
      return "segment_alloc";
    case core::TraceAction::kSegmentFree:
      return "segment_free";
    case core::TraceAction::kSegmentMap:
      return "segment_map";
    case core::TraceAction::kSegmentUnmap:
      return "segment_unmap";
    case core::TraceAction::kSnapshot:
      return "snapshot";
    case core::TraceAction::kOutOfMemory:
      return "oom";
  }
  return "unknown";
}

int64_t handle_of(const core::Stream* stream) {
  return stream == nullptr ? 0 : reinterpret_cast<int64_t>(stream->handle());
}

py::dict describe(const core::SegmentSnapshot& segment, c10::DeviceIndex device, Frames& frames) {
  size_t allocated = 0;
  size_t active = 0;
  size_t requested = 0;
  py::list blocks;
  for (const auto& block : segment.blocks) {
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested;
    entry["state"] = block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive";
    frames.set(entry, block.context);
    blocks.append(entry);
    if (block.allocated) allocated += block.size;
    if (block.active) active += block.size;
    if (block.active) requested += block.requested;
  }
  py::dict result;
  result["device"] = static_cast<int>(device);
  result["address"] = segment.address;
  result["total_size"] = segment.size;
  result["allocated_size"] = allocated;
  result["active_size"] = active;
  result["requested_size"] = requested;
  result["stream"] = handle_of(segment.stream);
  result["segment_type"] = segment.is_large ? "large" : "small";
  result["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
  result["is_expandable"] = segment.is_expandable;
  frames.set(result, segment.context);
  result["blocks"] = blocks;
  return result;
}

py::dict describe(const core::TraceEntry& entry, Frames& frames) {
  py::dict result;
  result["action"] = name_of(entry.action);
  result[entry.action == core::TraceAction::kOutOfMemory ? "device_free" : "addr"] = entry.address;
  result["size"] = entry.size;
  result["stream"] = handle_of(entry.stream);
  result["pool_id"] = py::make_tuple(entry.pool.first, entry.pool.second);
  result["time_us"] = entry.time_us;
  frames.set(result, entry.context);
  return result;
}

py::dict allocator_settings() {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  py::dict settings;
  settings["PYTORCH_ALLOC_CONF"] = Config::last_allocator_settings();
  const bool is_limited = Config::max_split_size() != std::numeric_limits<size_t>::max();
  settings["max_split_size"] = is_limited ? py::cast(static_cast<int64_t>(Config::max_split_size())) : py::int_(-1);
  settings["garbage_collection_threshold"] = Config::garbage_collection_threshold();
  settings["expandable_segments"] = Config::use_expandable_segments();
  return settings;
}

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

void add(py::dict& result, const std::string& name, const Stat& stat) {
  result[py::str(name + ".current")] = stat.current;
  result[py::str(name + ".peak")] = stat.peak;
  result[py::str(name + ".allocated")] = stat.allocated;
  result[py::str(name + ".freed")] = stat.freed;
}

void add(py::dict& result, const std::string& name, const StatArray& stats) {
  constexpr std::array pools{".all", ".small_pool", ".large_pool"};
  for (size_t pool = 0; pool < pools.size(); ++pool) add(result, name + pools[pool], stats[pool]);
}

// torch.mtia's nested names, and the flat ones of torch.cuda and torch.accelerator, which libraries ask every device
// for.
PyObject* PythonHooks::memoryStats(c10::DeviceIndex device) const {
  const auto stats = MTIACachingAllocator::get().getDeviceStats(index_or_current(device));
  py::dict result;
  add(result, "allocation", stats.allocation);
  add(result, "segment", stats.segment);
  add(result, "active", stats.active);
  add(result, "inactive_split", stats.inactive_split);
  add(result, "allocated_bytes", stats.allocated_bytes);
  add(result, "reserved_bytes", stats.reserved_bytes);
  add(result, "active_bytes", stats.active_bytes);
  add(result, "inactive_split_bytes", stats.inactive_split_bytes);
  add(result, "requested_bytes", stats.requested_bytes);
  add(result, "oversize_allocations", stats.oversize_allocations);
  add(result, "oversize_segments", stats.oversize_segments);
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = stats.max_split_size;

  constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[kAggregate];
  const auto& reserved = stats.reserved_bytes[kAggregate];
  py::dict dram;
  dram["allocated_bytes"] = allocated.current;
  dram["peak_bytes"] = allocated.peak;
  dram["reserved_bytes"] = reserved.current;
  dram["reserved_peak_bytes"] = reserved.peak;
  dram["num_alloc_retries"] = stats.num_alloc_retries;
  dram["num_ooms"] = stats.num_ooms;
  result["dram"] = dram;
  return result.release().ptr();
}

PyObject* PythonHooks::getDeviceCapability(c10::DeviceIndex device) const {
  const mtia_device_properties properties = properties_of(device);
  return py::make_tuple(properties.capability_major, properties.capability_minor).release().ptr();
}

PyObject* PythonHooks::getDeviceProperties(c10::DeviceIndex device) const {
  const mtia_device_properties properties = properties_of(device);
  py::dict result;
  result["name"] = properties.name;
  result["architecture"] = properties.architecture;
  result["total_memory"] = properties.total_memory;
  result["L2_cache_size"] = properties.l2_cache_size;
  result["multi_processor_count"] = properties.multi_processor_count;
  result["warp_size"] = properties.warp_size;
  result["major"] = properties.capability_major;
  result["minor"] = properties.capability_minor;
  return device_properties_type()(result).release().ptr();
}

void PythonHooks::recordMemoryHistory(const std::optional<std::string>& enabled, const std::string& stacks,
                                      size_t max_entries) const {
  const bool all = enabled == "all";
  TORCH_CHECK_VALUE(!enabled || all || enabled == "state", "`enabled` must be None, \"state\" or \"all\", got \"",
                    enabled.value_or(""), "\"");
  TORCH_CHECK_VALUE(stacks == "python" || stacks == "all", "`stacks` must be \"python\" or \"all\", got \"", stacks,
                    "\"");
  core::HistoryOptions options;
  options.enabled = enabled.has_value();
  if (all) options.max_entries = max_entries == 0 ? std::numeric_limits<size_t>::max() : max_entries;
  if (options.enabled) {
    torch::installCapturedTracebackPython();
    const bool cpp = stacks == "all";
    const auto gather = [cpp]() -> core::TraceContext { return CapturedTraceback::gather(true, true, cpp); };
    options.context_of_alloc = gather;
    if (all) options.context_of_free = gather;
  }
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    MTIACachingAllocator::of(device).record_history(options);
  }
}

PyObject* PythonHooks::memorySnapshot(const std::optional<std::string>& path) const {
  Frames frames;
  py::list segments;
  py::list traces;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    core::BlockAllocator& allocator = MTIACachingAllocator::of(device);
    for (const auto& segment : allocator.snapshot()) segments.append(describe(segment, device, frames));
    py::list trace;
    for (const auto& entry : allocator.history()) trace.append(describe(entry, frames));
    traces.append(trace);
  }
  frames.resolve();
  py::dict result;
  result["segments"] = segments;
  result["device_traces"] = traces;
  result["allocator_settings"] = allocator_settings();
  result["external_annotations"] = py::list();
  if (path) {
    const py::object file = py::module_::import("io").attr("open")(*path, "wb");
    py::module_::import("pickle").attr("dump")(result, file);
    file.attr("close")();
  }
  return result.release().ptr();
}

void PythonHooks::attachOutOfMemoryObserver(PyObject* observer) const {
  TORCH_CHECK_TYPE(PyCallable_Check(observer), "the out-of-memory observer must be callable");
  Py_INCREF(observer);  // leaked: memory may run out while the interpreter ends
  MTIACachingAllocator::get().attachOutOfMemoryObserver(
      [observer](int64_t device, size_t requested, size_t device_total, size_t device_free) {
        if (!Py_IsInitialized()) return;
        const py::gil_scoped_acquire gil;
        const py::handle call(observer);
        try {
          call(device, requested, device_total, device_free);
        } catch (py::error_already_set& error) {
          error.discard_as_unraisable(py::reinterpret_borrow<py::object>(call));
        }
      });
}

}  // namespace

void bind_hooks(py::module_& m) {
  m.def("_set_device_properties_type", [](py::object type) { device_properties_type() = std::move(type); });
  m.def("_hooks_registered_in_time", &hooks_registered_in_time);
  m.def("_device_count", &device_count);
  m.def("_is_initialized", &runtime::is_initialized);
  core::hooks.on_first_use = [] { torch::utils::register_fork_handler_for_device_init(device_type()); };
  m.def("_initialize", &ensure_initialized);
  m.def("_current_device", &current_device);
  m.def("_is_in_bad_fork", [] { return torch::utils::is_device_in_bad_fork(device_type()); });
  m.def("_default_generator", &default_generator);
  // As torch._C._mtia_*, whose initialization is that of torch.mtia.
  m.def("_default_stream", [](c10::DeviceIndex device) { return MTIAHooks().getDefaultStream(device); });
  m.def("_current_raw_stream", [](c10::DeviceIndex device) { return MTIAHooks().getCurrentRawStream(device); });
}

}  // namespace torch_mtia

namespace at {
C10_REGISTER_TYPED_CLASS(MTIAHooksRegistry, "MTIAHooks", torch_mtia::PythonHooks)
}  // namespace at
