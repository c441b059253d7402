// What Inductor calls in place of the Python function that it writes for a kernel: see
// torch_mtia/inductor/fast_launcher.py.
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bindings.h"
#include "fast_launcher.h"
#include "triton_launcher.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

constexpr size_t kMaxValues = 256;

struct FastLauncher {
  py::object launcher;         // upstream's function: what this one is quicker than
  py::object compute_grid;     // the same, but it calls `record_grid` in place of Triton's launcher
  py::object triton_launcher;  // keeps the layout
  py::object function;         // the kernel
  py::object enter_hook, exit_hook;
  std::vector<Py_ssize_t> places;   // of the layout's arguments among those of a call; -1: none, a constexpr
  std::vector<Py_ssize_t> numbers;  // places of what the grid may depend on
  size_t count = 0;                 // arguments of a call, beside the stream
  const ArgumentLayout* layout = nullptr;

  std::vector<py::object> known;  // the numbers that `grid` belongs to
  std::optional<Grid> grid;       // none before the first call
};

// Where `record_grid` leaves the grid that this thread asked for.
thread_local Grid recorded_grid;

PyObject* record_grid(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= 3, "a grid has three sizes, not ", count);
  if (!read_grid(args, recorded_grid)) return nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Of a float it says no, which only means that the grid is computed.
bool is_same(const py::object& before, PyObject* now) {
  if (before.ptr() == now) return true;
  return now != nullptr && PyLong_CheckExact(before.ptr()) && PyLong_CheckExact(now) &&
         PyObject_RichCompareBool(before.ptr(), now, Py_EQ) == 1;
}

PyObject* stream_keyword() {
  static PyObject* const names = PyTuple_Pack(1, PyUnicode_InternFromString("stream"));
  return names;
}

std::vector<py::object> as_objects(const ArgumentValue* values, size_t count) {
  std::vector<py::object> objects;
  for (const ArgumentValue& value : std::span(values, count)) {
    PyObject* object = value.object == nullptr ? THPVariable_Wrap(*value.tensor) : Py_NewRef(value.object);
    if (object == nullptr) throw py::error_already_set();
    objects.push_back(py::reinterpret_steal<py::object>(object));
  }
  return objects;
}

bool has_grid_for(const FastLauncher& self, const ArgumentValue* values) {
  return self.grid &&
         std::equal(self.known.begin(), self.known.end(), self.numbers.begin(), self.numbers.end(),
                    [&](const py::object& before, Py_ssize_t place) { return is_same(before, values[place].object); });
}

bool update_grid(FastLauncher& self, const ArgumentValue* values, PyObject* stream) {
  if (has_grid_for(self, values)) return true;
  const auto objects = as_objects(values, self.count);
  c10::SmallVector<PyObject*, 64> args;
  for (const py::object& object : objects) args.push_back(object.ptr());
  args.push_back(stream);
  const auto result = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(self.compute_grid.ptr(), args.data(), self.count, stream_keyword()));
  if (!result) return false;
  self.known.clear();
  for (const Py_ssize_t place : self.numbers) self.known.push_back(objects[static_cast<size_t>(place)]);
  self.grid = recorded_grid;
  return true;
}

constexpr const char* kCapsule = "torch_mtia.FastLauncher";

FastLauncher& of_capsule(PyObject* capsule) {
  return *static_cast<FastLauncher*>(PyCapsule_GetPointer(capsule, kCapsule));
}

bool launch(FastLauncher& self, const ArgumentValue* values, PyObject* stream) {
  if (!update_grid(self, values, stream)) return false;
  const Grid grid = *self.grid;  // another thread may change it as soon as this one gives up the GIL, to launch
  c10::SmallVector<ArgumentValue, 64> launched;
  for (const Py_ssize_t place : self.places) launched.push_back(place < 0 ? ArgumentValue{Py_None} : values[place]);
  return launch_kernel(*self.layout, grid, stream, self.function.ptr(), launched.data(), self.places.size());
}

PyObject* fast_launch(PyObject* capsule, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  FastLauncher& self = of_capsule(capsule);
  const bool as_upstream_calls_it =
      static_cast<size_t>(count) == self.count && names != nullptr && PyTuple_GET_SIZE(names) == 1;
  if (!as_upstream_calls_it || !is_empty_hook(self.enter_hook.ptr()) || !is_empty_hook(self.exit_hook.ptr())) {
    return PyObject_Vectorcall(self.launcher.ptr(), args, static_cast<size_t>(count), names);
  }
  c10::SmallVector<ArgumentValue, 64> values;
  for (size_t i = 0; i < self.count; ++i) values.push_back({args[i]});
  if (!launch(self, values.data(), args[count])) return nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Python's `CachingAutotuner.run`, and the modules whose variables say whether somebody watches launches.
struct UpstreamRun {
  py::object run;
  py::dict profiler, debug_mode;
  py::object replacement;
};

PyObject* run_name() {
  static PyObject* const name = PyUnicode_InternFromString("run");
  return name;
}

bool is_set(const py::dict& module, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(module.ptr(), name);
  return value == nullptr || PyObject_IsTrue(value) != 0;
}

// Leaked: kernels may be launched while the process ends.
UpstreamRun*& upstream_run() {
  static UpstreamRun* instance = nullptr;
  return instance;
}

// Whether somebody watches the launches of all kernels.
bool are_launches_watched() {
  static PyObject* const profiles = PyUnicode_InternFromString("_is_profiler_enabled");
  static PyObject* const debugs = PyUnicode_InternFromString("_ACTIVE_DEBUG_MODE_COUNT");
  const UpstreamRun& upstream = *upstream_run();
  return is_set(upstream.profiler, profiles) || is_set(upstream.debug_mode, debugs);
}

// New; null: raised in Python.
py::object cached_launcher(PyObject* autotuner) {
  static PyObject* const name = PyUnicode_InternFromString("_cached_launcher");
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(autotuner, name));
}

// As upstream's begins: with its launcher, once there is one. All else is upstream's own.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const bool as_generated = names != nullptr && PyTuple_GET_SIZE(names) == 1 &&
                            PyTuple_GET_ITEM(names, 0) == PyTuple_GET_ITEM(stream_keyword(), 0);
  if (as_generated && !are_launches_watched()) {
    const py::object launcher = cached_launcher(self);
    if (!launcher) return nullptr;
    if (!launcher.is_none()) return PyObject_Vectorcall(launcher.ptr(), args, static_cast<size_t>(count), names);
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
  return PyObject_Vectorcall(upstream_run()->run.ptr(), all.data(), static_cast<size_t>(count) + 1, names);
  END_HANDLE_TH_ERRORS
}

FastLauncher& of_launcher(const py::object& launcher) {
  return of_capsule(PyCFunction_GET_SELF(launcher.ptr()));
}

PyMethodDef record_grid_method{"record_grid", reinterpret_cast<PyCFunction>(&record_grid), METH_FASTCALL, nullptr};
PyMethodDef fast_launch_method{"launcher", reinterpret_cast<PyCFunction>(&fast_launch), METH_FASTCALL | METH_KEYWORDS,
                               nullptr};
// With the signature of upstream's, which looks at it.
PyMethodDef run_method{"run", reinterpret_cast<PyCFunction>(&run), METH_FASTCALL | METH_KEYWORDS,
                       "run($self, /, *args, stream, benchmark_run=False, **kwargs)\n--\n\n"};

py::object make_run(const py::type& autotuner, py::object original, py::dict profiler, py::dict debug_mode) {
  auto replacement = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(autotuner.ptr()), &run_method));
  upstream_run() = new UpstreamRun{std::move(original), std::move(profiler), std::move(debug_mode), replacement};
  return replacement;
}

py::object make_fast_launcher(py::object launcher, py::object compute_grid, py::object triton_launcher,
                              py::object function, py::object enter_hook, py::object exit_hook,
                              std::vector<Py_ssize_t> places, std::vector<Py_ssize_t> numbers, size_t count) {
  const auto in_range = [&](Py_ssize_t place) { return place < static_cast<Py_ssize_t>(count); };
  TORCH_CHECK_VALUE(places.size() <= kMaxValues && std::all_of(places.begin(), places.end(), in_range) &&
                        std::all_of(numbers.begin(), numbers.end(), in_range),
                    "a call has ", count, " arguments, and a kernel at most ", kMaxValues);
  const ArgumentLayout* layout = layout_of(triton_launcher.ptr());
  if (layout == nullptr) throw py::error_already_set();
  auto self = std::make_unique<FastLauncher>(
      FastLauncher{std::move(launcher), std::move(compute_grid), std::move(triton_launcher), std::move(function),
                   std::move(enter_hook), std::move(exit_hook), std::move(places), std::move(numbers), count, layout});
  const py::capsule capsule(self.get(), kCapsule, [](void* pointer) {
    const std::unique_ptr<FastLauncher> owned(static_cast<FastLauncher*>(pointer));
  });
  self.release();
  return py::reinterpret_steal<py::object>(PyCFunction_New(&fast_launch_method, capsule.ptr()));
}

}  // namespace

LaunchCheck::LaunchCheck() : are_watched_(upstream_run() == nullptr || are_launches_watched()) {}

bool LaunchCheck::is_empty(const py::object& hook) {
  if (hook.ptr() != empty_hook_ && !is_empty_hook(hook.ptr())) return false;
  empty_hook_ = hook.ptr();
  return true;
}

py::object LaunchCheck::launcher_of(PyObject* autotuner) {
  if (are_watched_) return {};
  PyTypeObject* type = Py_TYPE(autotuner);
  if (type != type_ && _PyType_Lookup(type, run_name()) != upstream_run()->replacement.ptr()) return {};
  type_ = type;
  py::object launcher = cached_launcher(autotuner);
  if (!launcher) throw py::error_already_set();
  if (!PyCFunction_CheckExact(launcher.ptr()) ||
      PyCFunction_GET_FUNCTION(launcher.ptr()) != reinterpret_cast<PyCFunction>(&fast_launch)) {
    return {};
  }
  const FastLauncher& self = of_launcher(launcher);
  return is_empty(self.enter_hook) && is_empty(self.exit_hook) ? launcher : py::object();
}

std::unique_ptr<const BoundLaunch> BoundLaunch::make(PyObject* autotuner, const ArgumentValue* values, size_t count) {
  const auto is_open = [&](Py_ssize_t place) {
    return place >= 0 && values[place].object == nullptr && values[place].tensor == nullptr;
  };
  py::object launcher = LaunchCheck().launcher_of(autotuner);
  if (!launcher) return nullptr;
  const FastLauncher& fast = of_launcher(launcher);
  auto kernel = loaded_kernel(fast.function.ptr());
  if (fast.count != count || kernel == nullptr || !has_grid_for(fast, values)) return nullptr;
  std::unique_ptr<BoundLaunch> self(new BoundLaunch);
  std::vector<ArgumentValue> launched;
  for (size_t argument = 0; argument < fast.places.size(); ++argument) {
    const Py_ssize_t place = fast.places[argument];
    if (is_open(place)) {
      const auto pointer = fast.layout->place_of_pointer(argument);
      if (!pointer) return nullptr;
      const auto tensor = std::count_if(values, values + place, [](const ArgumentValue& value) {
        return value.object == nullptr && value.tensor == nullptr;
      });
      self->pointers_.emplace_back(*pointer, static_cast<size_t>(tensor));
    }
    launched.push_back(place < 0 || is_open(place) ? ArgumentValue{Py_None} : values[place]);
  }
  PackedArguments packed;
  if (!fast.layout->pack(launched.data(), launched.size(), {device_type(), kernel->device()}, packed)) {
    throw py::error_already_set();
  }
  self->packed_.assign(packed.bytes.begin(), packed.bytes.begin() + fast.layout->size());
  self->function_ = fast.function.ptr();
  self->kernel_ = std::move(kernel);
  self->grid_ = *fast.grid;
  self->launcher_ = std::move(launcher);
  return self;
}

bool BoundLaunch::launch(const MTIAStream& stream, const at::Tensor* const* tensors) const {
  const c10::Device device(device_type(), kernel_->device());
  if (stream.device() != device.index()) return false;
  PackedArguments packed;
  std::copy(packed_.begin(), packed_.end(), packed.bytes.begin());
  for (const auto& [place, index] : pointers_) {
    const at::Tensor& tensor = *tensors[index];
    if (tensor.device() != device) return false;
    const auto pointer = reinterpret_cast<mtia_device_ptr>(tensor.data_ptr());
    std::memcpy(packed.bytes.data() + place, &pointer, sizeof(pointer));
  }
  kernel_->launch(stream, grid_, packed.bytes.data(), static_cast<uint32_t>(packed_.size()));
  return true;
}

bool run_kernel(PyObject* autotuner, const ArgumentValue* values, size_t count, PyObject* stream) {
  const py::object launcher = LaunchCheck().launcher_of(autotuner);
  if (launcher && of_launcher(launcher).count == count) return launch(of_launcher(launcher), values, stream);
  const auto objects = as_objects(values, count);
  c10::SmallVector<PyObject*, 64> args{autotuner};
  for (const py::object& object : objects) args.push_back(object.ptr());
  args.push_back(stream);
  return static_cast<bool>(py::reinterpret_steal<py::object>(
      PyObject_VectorcallMethod(run_name(), args.data(), count + 1, stream_keyword())));
}

void bind_fast_launcher(py::module_& module) {
  module.attr("_record_grid") = py::reinterpret_steal<py::object>(PyCFunction_New(&record_grid_method, nullptr));
  module.def("_fast_launcher", &make_fast_launcher);
  module.def("_fast_run", &make_run);
}

}  // namespace torch_mtia
