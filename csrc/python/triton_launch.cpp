#include "triton_launch.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../core/Waits.h"
#include "../device/LaunchCounter.h"
#include "../device/MTIAFunctions.h"
#include "bindings.h"

namespace py = pybind11;

namespace torch_mtia {

PreparedLaunch::PreparedLaunch(const ArgumentLayout& layout, std::shared_ptr<const MTIAKernel> kernel, const Grid& grid,
                               const ArgumentValue* values, size_t count)
    : layout_(&layout), kernel_(std::move(kernel)), grid_(grid) {
  block_.resize_for_overwrite((layout.size() + sizeof(Chunk) - 1) / sizeof(Chunk));
  layout.pack(values, count, device(), block_.data()->bytes.data());
}

void PreparedLaunch::launch(const MTIAStream& stream) const {
  launch_with(stream, block_);
}

void PreparedLaunch::launch(const MTIAStream& stream, const ArgumentValue* values,
                            const std::vector<Py_ssize_t>& places) const {
  Block block = block_;
  layout_->pack_pointers(values, places, device(), block.data()->bytes.data());
  launch_with(stream, block);
}

void PreparedLaunch::launch_with(const MTIAStream& stream, const Block& block) const {
  const core::WithoutGil without_gil;
  kernel_->launch(stream, grid_, block.data(), layout_->size());
}

void PreparedLaunch::launch_watched(const MTIAStream& stream, const mtia_kernel_watch& watch) const {
  const core::WithoutGil without_gil;
  kernel_->launch(stream, grid_, block_.data(), layout_->size(), &watch);
  stream.synchronize();
}

bool PreparedLaunch::try_launch(const MTIAStream& stream, const ArgumentValue* values,
                                const std::vector<Py_ssize_t>& places) const {
  if (stream.device() != kernel_->device()) return false;
  Block block = block_;
  if (!layout_->pack_tensors(values, places, device(), block.data()->bytes.data())) return false;
  kernel_->launch(stream, grid_, block.data(), layout_->size());
  return true;
}

namespace {

py::object owned(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// A builtin function that owns the object it is bound to.
template <typename T>
py::object bound(PyMethodDef& method, std::unique_ptr<T> object) {
  const py::capsule capsule(object.get(), [](void* pointer) { delete static_cast<T*>(pointer); });
  object.release();
  return owned(PyCFunction_New(&method, capsule.ptr()));
}

template <typename T>
T& bound_to(PyObject* capsule) {
  return *static_cast<T*>(PyCapsule_GetPointer(capsule, nullptr));
}

bool is_builtin(PyObject* function, const PyMethodDef& method) {
  return PyCFunction_CheckExact(function) && PyCFunction_GET_FUNCTION(function) == method.ml_meth;
}

// torch_mtia._C.Kernel: what Triton calls a module, and the function in it.
struct LoadedKernel {
  std::shared_ptr<const MTIAKernel> kernel;  // null: unloaded
  static PyTypeObject* type;

  // Without the conversion of pybind11, whose look-up of types takes 100 ns.
  static const LoadedKernel& of(PyObject* function) {
    TORCH_CHECK_TYPE(Py_TYPE(function) == type, "the function of a launch on mtia is a torch_mtia._C.Kernel, not ",
                     Py_TYPE(function)->tp_name);
    return *reinterpret_cast<py::detail::instance*>(function)->get_value_and_holder().value_ptr<LoadedKernel>();
  }
  const std::shared_ptr<const MTIAKernel>& get() const {
    TORCH_CHECK(kernel != nullptr, "this kernel was unloaded and cannot be launched any more; compile it again");
    return kernel;
  }
};

PyTypeObject* LoadedKernel::type = nullptr;

// Whether there is nothing to call before or after a launch. Triton passes a chain of hooks at every one, nearly always
// an empty one; calling it would take longer than all the rest of the launch.
bool is_empty_hook(PyObject* hook) {
  if (hook == Py_None) return true;
  static PyObject* const name = PyUnicode_InternFromString("calls");
  const auto calls = py::reinterpret_steal<py::object>(PyObject_GetAttr(hook, name));
  if (!calls) PyErr_Clear();
  return calls && PyList_CheckExact(calls.ptr()) && PyList_GET_SIZE(calls.ptr()) == 0;
}

// The first three values.
Grid read_grid(PyObject* const* values) {
  Grid grid{};
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    int overflow = 0;
    const long size = PyLong_AsLongAndOverflow(values[axis], &overflow);
    if (size == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    TORCH_CHECK_VALUE(overflow == 0 && size >= 0 && size <= std::numeric_limits<int32_t>::max(), "the grid's size ",
                      std::string(py::str(values[axis])), " in dimension ", axis, " is not in [0, 2**31 - 1]");
    grid[axis] = static_cast<int32_t>(size);
  }
  return grid;
}

// The stream of the handle that torch._C._mtia_getCurrentRawStream returns.
MTIAStream read_stream(PyObject* value, c10::DeviceIndex device) {
  const void* handle = PyLong_AsVoidPtr(value);
  if (handle == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  const MTIAStream current = MTIAStream::current(device);
  if (current.core().handle() == handle) [[likely]]
    return current;
  const auto other = MTIAStream::find(device, handle);
  TORCH_CHECK_VALUE(other.has_value(), std::string(py::repr(value)), " is not the handle of a stream of ",
                    device_name(device), ", where the kernel was loaded");
  return *other;
}

// Triton's launcher ---------------------------------------------------------------------------------------------------

struct TritonLauncher {
  ArgumentLayout layout;
  py::object source;      // what Triton compiled, for the observer; None: launches are not observed
  uint64_t observed = 0;  // the last observation that saw a launch of it
};

// Called before the first launch of each kernel: observer(source, grid_x, grid_y, grid_z, stream, function,
// *arguments). If the result is true, it has launched the kernel itself. Null: there is none. The GIL guards both.
PyObject* launch_observer = nullptr;
uint64_t observation = 0;  // counts them

// The arguments before those of the kernel.
enum LaunchArgument : Py_ssize_t {
  kGrid,
  kStream = 3,
  kFunction,
  kPackedMetadata,
  kLaunchMetadata,
  kEnterHook,
  kExitHook,
  kFirstKernelArgument
};

// `args` are those of triton_launch.
bool is_launched_by_observer(TritonLauncher& launcher, PyObject* const* args, Py_ssize_t count) {
  if (launcher.source.is_none() || std::exchange(launcher.observed, observation) == observation) return false;
  const auto observer = py::reinterpret_borrow<py::object>(launch_observer);  // it may end its own observation
  c10::SmallVector<PyObject*, 64> passed{launcher.source.ptr()};
  passed.append(args, args + kPackedMetadata);
  passed.append(args + kFirstKernelArgument, args + count);
  const py::object result = owned(PyObject_Vectorcall(observer.ptr(), passed.data(), passed.size(), nullptr));
  return PyObject_IsTrue(result.ptr()) == 1;
}

PyObject* triton_launch(PyObject* capsule, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= kFirstKernelArgument, "a launch takes ", Py_ssize_t{kFirstKernelArgument},
                   " arguments by position and then those of the kernel, got ", count);
  const auto call_hook = [&](PyObject* hook) {
    if (!is_empty_hook(hook)) owned(PyObject_CallOneArg(hook, args[kLaunchMetadata]));
  };
  call_hook(args[kEnterHook]);
  const Grid grid = read_grid(args + kGrid);
  const auto& kernel = LoadedKernel::of(args[kFunction]).get();
  const MTIAStream stream = read_stream(args[kStream], kernel->device());
  c10::SmallVector<ArgumentValue, 64> values;
  for (Py_ssize_t i = kFirstKernelArgument; i < count; ++i) values.push_back({args[i]});
  auto& launcher = bound_to<TritonLauncher>(capsule);
  if (launch_observer == nullptr || !is_launched_by_observer(launcher, args, count)) [[likely]]
    PreparedLaunch(launcher.layout, kernel, grid, values.data(), values.size()).launch(stream);
  call_hook(args[kExitHook]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef triton_launch_method{"launcher", reinterpret_cast<PyCFunction>(&triton_launch), METH_FASTCALL, nullptr};

// From now on, launches are those of a new observation.
void observe_launches(py::object observer) {
  ++observation;
  PyObject* const before = std::exchange(launch_observer, observer.is_none() ? nullptr : observer.release().ptr());
  Py_XDECREF(before);
}

// Launches a kernel that was compiled to be watched, and waits for it. Returns the number of programs; for each access
// in the source, its file, line, argument, kind, size of an element and number of elements; the bytes that are read and
// written, each counted once; and how often each block was entered.
py::tuple count_launch(const py::object& launcher, const py::args& values) {
  TORCH_CHECK_TYPE(is_builtin(launcher.ptr(), triton_launch_method), "expected what _make_launcher() returns");
  PyObject* const* args = PySequence_Fast_ITEMS(values.ptr());
  const auto& kernel = LoadedKernel::of(args[kFunction]).get();
  const MTIAStream stream = read_stream(args[kStream], kernel->device());
  c10::SmallVector<ArgumentValue, 64> packed;
  for (size_t i = kFunction + 1; i < values.size(); ++i) packed.push_back({args[i]});
  LaunchCounter counter;
  PreparedLaunch(bound_to<TritonLauncher>(PyCFunction_GET_SELF(launcher.ptr())).layout, kernel, read_grid(args),
                 packed.data(), packed.size())
      .launch_watched(stream, counter);
  py::list sites;
  for (const auto& [number, site] : counter.sites()) {
    const mtia_site& source = *site.source;
    sites.append(py::make_tuple(source.file, source.line, source.argument, source.kind, source.size, site.elements));
  }
  const auto [read, written] = counter.bytes();
  return py::make_tuple(counter.programs(), sites, read, written, counter.blocks());
}

// Inductor's launcher -------------------------------------------------------------------------------------------------

// What Inductor calls in place of the Python function that it writes for a kernel: see
// torch_mtia/inductor/fast_launcher.py.
struct FastLauncher {
  py::object launcher;         // upstream's function: what this one is quicker than
  py::object compute_grid;     // the same, but it calls `record_grid` in place of Triton's launcher
  py::object triton_launcher;  // owns the layout
  std::shared_ptr<const LoadedKernel> function;
  py::object enter_hook, exit_hook;
  std::vector<Py_ssize_t> places;   // of the layout's arguments among those of a call; -1: none, a constexpr
  std::vector<Py_ssize_t> numbers;  // places of what is no pointer, which the grid may depend on
  size_t count = 0;                 // arguments of a call, beside the stream
  const ArgumentLayout* layout = nullptr;

  std::vector<py::object> known;           // the numbers that `prepared` belongs to
  std::optional<PreparedLaunch> prepared;  // none before the first call

  bool is_prepared_for(const ArgumentValue* values) const;
  // A launch with other numbers than at the last call.
  PreparedLaunch prepare(const ArgumentValue* values, PyObject* stream);
  void launch(const ArgumentValue* values, PyObject* stream);
};

// Where `record_grid` leaves the grid that this thread asked for.
thread_local Grid recorded_grid;

PyObject* record_grid(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count >= 3, "a grid has three sizes, not ", count);
  recorded_grid = read_grid(args);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Of a float it says no, which only means that the launch is prepared again.
bool is_same(const py::object& before, PyObject* now) {
  if (before.ptr() == now) return true;
  return now != nullptr && PyLong_CheckExact(before.ptr()) && PyLong_CheckExact(now) &&
         PyObject_RichCompareBool(before.ptr(), now, Py_EQ) == 1;
}

// Unlike a tensor of one element, say.
bool is_constant(const py::object& number) {
  return PyLong_Check(number.ptr()) || PyFloat_Check(number.ptr()) || number.is_none();
}

PyObject* stream_keyword() {
  static PyObject* const names = PyTuple_Pack(1, PyUnicode_InternFromString("stream"));
  return names;
}

std::vector<py::object> as_objects(const ArgumentValue* values, size_t count) {
  std::vector<py::object> objects;
  for (const ArgumentValue& value : std::span(values, count)) {
    objects.push_back(owned(value.object == nullptr ? THPVariable_Wrap(*value.tensor) : Py_NewRef(value.object)));
  }
  return objects;
}

bool FastLauncher::is_prepared_for(const ArgumentValue* values) const {
  return prepared &&
         std::equal(known.begin(), known.end(), numbers.begin(), numbers.end(),
                    [&](const py::object& before, Py_ssize_t place) { return is_same(before, values[place].object); });
}

PreparedLaunch FastLauncher::prepare(const ArgumentValue* values, PyObject* stream) {
  const auto objects = as_objects(values, count);
  c10::SmallVector<PyObject*, 64> args;
  for (const py::object& object : objects) args.push_back(object.ptr());
  args.push_back(stream);
  owned(PyObject_Vectorcall(compute_grid.ptr(), args.data(), count, stream_keyword()));
  const Grid grid = recorded_grid;
  c10::SmallVector<ArgumentValue, 64> launched;
  for (const Py_ssize_t place : places) launched.push_back(place < 0 ? ArgumentValue{Py_None} : values[place]);
  PreparedLaunch launch(*layout, function->get(), grid, launched.data(), launched.size());
  std::vector<py::object> now;
  for (const Py_ssize_t number : numbers) now.push_back(objects[static_cast<size_t>(number)]);
  const bool can_be_kept = std::all_of(places.begin(), places.end(), [&](Py_ssize_t place) {
    const auto number = std::find(numbers.begin(), numbers.end(), place);
    return number == numbers.end() || is_constant(now[static_cast<size_t>(number - numbers.begin())]);
  });
  prepared.reset();
  known.swap(now);
  if (can_be_kept) prepared.emplace(launch);
  return launch;
}

void FastLauncher::launch(const ArgumentValue* values, PyObject* stream) {
  if (!is_prepared_for(values)) {
    const PreparedLaunch launch = prepare(values, stream);
    return launch.launch(read_stream(stream, launch.kernel()->device()));
  }
  const MTIAStream on = read_stream(stream, function->get()->device());
  const PreparedLaunch launch = *prepared;  // another thread may change it once this one gives up the GIL, to launch
  launch.launch(on, values, places);
}

PyObject* fast_launch(PyObject* capsule, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  auto& self = bound_to<FastLauncher>(capsule);
  const bool as_upstream_calls_it =
      static_cast<size_t>(count) == self.count && names != nullptr && PyTuple_GET_SIZE(names) == 1;
  if (!as_upstream_calls_it || !is_empty_hook(self.enter_hook.ptr()) || !is_empty_hook(self.exit_hook.ptr())) {
    return PyObject_Vectorcall(self.launcher.ptr(), args, static_cast<size_t>(count), names);
  }
  c10::SmallVector<ArgumentValue, 64> values;
  for (size_t i = 0; i < self.count; ++i) values.push_back({args[i]});
  self.launch(values.data(), args[count]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef record_grid_method{"record_grid", reinterpret_cast<PyCFunction>(&record_grid), METH_FASTCALL, nullptr};
PyMethodDef fast_launch_method{"launcher", reinterpret_cast<PyCFunction>(&fast_launch), METH_FASTCALL | METH_KEYWORDS,
                               nullptr};

py::object make_fast_launcher(py::object launcher, py::object compute_grid, py::object triton_launcher,
                              std::shared_ptr<LoadedKernel> function, py::object enter_hook, py::object exit_hook,
                              std::vector<Py_ssize_t> places, std::vector<Py_ssize_t> numbers, size_t count) {
  TORCH_CHECK_TYPE(is_builtin(triton_launcher.ptr(), triton_launch_method), "expected what _make_launcher() returns");
  const ArgumentLayout& layout = bound_to<TritonLauncher>(PyCFunction_GET_SELF(triton_launcher.ptr())).layout;
  const auto in_range = [&](Py_ssize_t place) { return place < static_cast<Py_ssize_t>(count); };
  const auto is_given = [&](size_t argument) { return places[argument] >= 0; };
  TORCH_CHECK_VALUE(places.size() == layout.num_arguments() && std::all_of(places.begin(), places.end(), in_range) &&
                        std::all_of(numbers.begin(), numbers.end(), in_range) &&
                        std::ranges::all_of(layout.pointers(), is_given, &ArgumentLayout::Pointer::argument),
                    "the ", count, " arguments of a call do not give the kernel its ", layout.num_arguments());
  return bound(fast_launch_method, std::make_unique<FastLauncher>(FastLauncher{std::move(launcher),
                                                                               std::move(compute_grid),
                                                                               std::move(triton_launcher),
                                                                               std::move(function),
                                                                               std::move(enter_hook),
                                                                               std::move(exit_hook),
                                                                               std::move(places),
                                                                               std::move(numbers),
                                                                               count,
                                                                               &layout,
                                                                               {},
                                                                               {}}));
}

FastLauncher& of_launcher(const py::object& launcher) {
  return bound_to<FastLauncher>(PyCFunction_GET_SELF(launcher.ptr()));
}

// CachingAutotuner.run ------------------------------------------------------------------------------------------------

// Python's `CachingAutotuner` and its `run`, and the modules whose variables say whether somebody watches launches.
struct UpstreamRun {
  py::object autotuner, run;
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

// Returns `CachingAutotuner.run`, which may have been replaced.
PyObject* current_run() {
  return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(upstream_run()->autotuner.ptr()), run_name());
}

// Whether somebody watches the launches of all kernels.
bool are_launches_watched() {
  static PyObject* const profiles = PyUnicode_InternFromString("_is_profiler_enabled");
  static PyObject* const debugs = PyUnicode_InternFromString("_ACTIVE_DEBUG_MODE_COUNT");
  const UpstreamRun& upstream = *upstream_run();
  return current_run() != upstream.run.ptr() || is_set(upstream.profiler, profiles) ||
         is_set(upstream.debug_mode, debugs);
}

py::object cached_launcher(PyObject* autotuner) {
  static PyObject* const name = PyUnicode_InternFromString("_cached_launcher");
  return owned(PyObject_GetAttr(autotuner, name));
}

// As upstream's begins: with its launcher, once there is one. All else is upstream's own.
PyObject* run(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const bool as_generated = names != nullptr && PyTuple_GET_SIZE(names) == 1 &&
                            PyTuple_GET_ITEM(names, 0) == PyTuple_GET_ITEM(stream_keyword(), 0);
  if (as_generated && !are_launches_watched()) {
    const py::object launcher = cached_launcher(self);
    if (!launcher.is_none()) return PyObject_Vectorcall(launcher.ptr(), args, static_cast<size_t>(count), names);
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
  const py::object upstream = owned(Py_NewRef(current_run()));
  return PyObject_Vectorcall(upstream.ptr(), all.data(), static_cast<size_t>(count) + 1, names);
  END_HANDLE_TH_ERRORS
}

// With the signature of upstream's, which looks at it.
PyMethodDef run_method{"run", reinterpret_cast<PyCFunction>(&run), METH_FASTCALL | METH_KEYWORDS,
                       "run($self, /, *args, stream, benchmark_run=False, **kwargs)\n--\n\n"};

py::object make_run(const py::type& autotuner, py::object original, py::dict profiler, py::dict debug_mode) {
  auto replacement = owned(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(autotuner.ptr()), &run_method));
  upstream_run() =
      new UpstreamRun{autotuner, std::move(original), std::move(profiler), std::move(debug_mode), replacement};
  return replacement;
}

}  // namespace

void run_kernel(PyObject* autotuner, const ArgumentValue* values, size_t count, PyObject* stream) {
  const py::object launcher = LaunchCheck().launcher_of(autotuner);
  if (launcher && of_launcher(launcher).count == count) return of_launcher(launcher).launch(values, stream);
  const auto objects = as_objects(values, count);
  c10::SmallVector<PyObject*, 64> args{autotuner};
  for (const py::object& object : objects) args.push_back(object.ptr());
  args.push_back(stream);
  owned(PyObject_VectorcallMethod(run_name(), args.data(), count + 1, stream_keyword()));
}

std::unique_ptr<const BoundLaunch> BoundLaunch::make(PyObject* autotuner, const ArgumentValue* values, size_t count) {
  py::object launcher = LaunchCheck().launcher_of(autotuner);
  if (!launcher) return nullptr;
  const FastLauncher& fast = of_launcher(launcher);
  if (fast.count != count || !fast.is_prepared_for(values)) return nullptr;
  return std::unique_ptr<const BoundLaunch>(new BoundLaunch(std::move(launcher), *fast.prepared));
}

bool BoundLaunch::launch(const MTIAStream& stream, const ArgumentValue* values) const {
  return launch_.try_launch(stream, values, of_launcher(launcher_).places);
}

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
  if (!is_builtin(launcher.ptr(), fast_launch_method)) return {};
  const FastLauncher& self = of_launcher(launcher);
  return is_empty(self.enter_hook) && is_empty(self.exit_hook) ? launcher : py::object();
}

bool LaunchCheck::is_current(PyObject* autotuner, const BoundLaunch& launch) {
  return launcher_of(autotuner).is(launch.launcher_) &&
         of_launcher(launch.launcher_).function->kernel == launch.launch_.kernel();
}

void bind_triton_launch(py::module_& module) {
  py::class_<LoadedKernel, std::shared_ptr<LoadedKernel>> kernel(module, "Kernel", py::is_final(),
                                                                 "A kernel image, loaded on a device.");
  LoadedKernel::type = reinterpret_cast<PyTypeObject*>(kernel.ptr());
  kernel
      .def(py::init([](const std::string& name, const py::bytes& image, int64_t device) {
             const c10::DeviceIndex index = to_device_index(device);
             return LoadedKernel{std::make_shared<const MTIAKernel>(index, name, std::string_view(image))};
           }),
           py::arg("name"), py::arg("image"), py::arg("device"))
      .def(
          "unload", [](LoadedKernel& self) { self.kernel.reset(); },
          "Frees the kernel. Launching it raises from now on.")
      .def("__repr__", [](const LoadedKernel& self) {
        if (self.kernel == nullptr) return std::string("<kernel, unloaded>");
        return "<kernel " + self.kernel->name() + " on " + device_name(self.kernel->device()) + ">";
      });
  module.def(
      "_make_launcher",
      [](const py::iterable& arguments, py::object source) {
        return bound(triton_launch_method,
                     std::make_unique<TritonLauncher>(TritonLauncher{ArgumentLayout(arguments), std::move(source)}));
      },
      py::arg("arguments"), py::arg("source") = py::none());
  module.def("_observe_launches", &observe_launches);
  module.def("_count_launch", &count_launch);
  module.def("_is_launcher", [](py::handle object) { return is_builtin(object.ptr(), triton_launch_method); });
  module.attr("_record_grid") = owned(PyCFunction_New(&record_grid_method, nullptr));
  module.def("_fast_launcher", &make_fast_launcher);
  module.def("_fast_run", &make_run);
  module.def("_set_check_bounds", &MTIAKernel::set_check_bounds);
}

}  // namespace torch_mtia
