// A function of generated code as a list of operations: see torch_mtia/inductor/prepared_call.py.
#include <ATen/core/Tensor.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <structmember.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/inductor/inductor_ops.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../core/Waits.h"
#include "../device/MTIAStream.h"
#include "bindings.h"
#include "triton_launch.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

using Sizes = c10::SmallVector<int64_t, 8>;

// A value of the function: a Python object, a tensor or a stream that has none yet, or both.
struct Register {
  py::object object;
  at::Tensor tensor;  // goes first: a Python object that is the last to hold its tensor does not outlive itself
  std::optional<MTIAStream> stream;

  PyObject* as_object() {
    if (!object) {
      TORCH_CHECK(tensor.defined() || stream, "generated code reads a variable that has no value");
      object = py::reinterpret_steal<py::object>(stream ? PyLong_FromVoidPtr(stream->core().handle())
                                                        : THPVariable_Wrap(tensor));
      if (!object) throw py::error_already_set();
    }
    return object.ptr();
  }
  // Needs no GIL where `tensor` is there.
  bool is_tensor() {
    if (tensor.defined()) return true;
    if (!object || !THPVariable_Check(object.ptr())) return false;
    tensor = THPVariable_Unpack(object.ptr());
    return true;
  }
  const at::Tensor& as_tensor() {
    TORCH_CHECK_TYPE(is_tensor(), "generated code expected a tensor");
    return tensor;
  }
};

// Note [The GIL in prepared code]
// Launches give the GIL up, because small kernels run within them, and the operations that need it take it back: `run`
// of each says so, by `needs_gil`. Between two launches there is often nothing but memory, so a sequence of small
// kernels runs without taking it once. While nobody else can run Python code on this thread, nothing that decides how a
// kernel is launched changes here, so it is looked at once for all launches up to the next operation that calls Python.
struct State {
  c10::SmallVector<Register, 64> registers;
  std::optional<c10::DeviceGuard> guard;
  c10::SmallVector<const BoundLaunch*, 32> bound;  // of the launches that were looked at; null: by `run_kernel`
  std::optional<core::WithoutGil> without_gil;     // goes first
};

// A register, or a constant, which is borrowed.
struct Operand {
  int index = -1;
  PyObject* constant = nullptr;
  std::optional<int64_t> integer;  // what the constant is

  PyObject* as_object(State& state) const { return index < 0 ? constant : state.registers[index].as_object(); }
  ArgumentValue as_value(State& state) const {
    if (index < 0) return {constant};
    Register& value = state.registers[index];
    return value.tensor.defined() && !value.object ? ArgumentValue{nullptr, &value.tensor}
                                                   : ArgumentValue{value.as_object()};
  }
  int64_t as_integer(State& state) const {
    if (integer) return *integer;
    const int64_t value = PyLong_AsLongLong(as_object(state));
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return value;
  }
};

using Operands = std::vector<Operand>;

Sizes as_integers(const Operands& operands, State& state) {
  Sizes values;
  for (const Operand& operand : operands) values.push_back(operand.as_integer(state));
  return values;
}

bool are_integers(const Operands& operands) {
  return std::all_of(operands.begin(), operands.end(),
                     [](const Operand& operand) { return operand.integer.has_value(); });
}

py::object as_tuple(const Operands& operands, State& state) {
  auto result = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(operands.size())));
  if (!result) throw py::error_already_set();
  for (size_t i = 0; i < operands.size(); ++i) {
    PyTuple_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(operands[i].as_object(state)));
  }
  return result;
}

py::object call(PyObject* function, PyObject* const* args, size_t count) {
  auto result = py::reinterpret_steal<py::object>(PyObject_Vectorcall(function, args, count, nullptr));
  if (!result) throw py::error_already_set();
  return result;
}

// Operations ----------------------------------------------------------------------------------------------------------

struct WithGil {
  static bool needs_gil(const State& /*state*/) { return true; }
};
struct WithoutPython {
  static bool needs_gil(const State& /*state*/) { return false; }
};

void assign(State& state, const std::vector<int>& to, py::handle values) {
  const auto items =
      py::reinterpret_steal<py::object>(PySequence_Fast(values.ptr(), "cannot unpack what is no sequence"));
  if (!items) throw py::error_already_set();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  TORCH_CHECK_VALUE(count == to.size(), "expected ", to.size(), " values to unpack, got ", count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    state.registers[to[i]] = {py::reinterpret_borrow<py::object>(item), {}};
  }
}

struct Unpack : WithGil {
  std::vector<int> to;
  int from;
  void run(State& state) const { assign(state, to, state.registers[from].as_object()); }
};

struct Clear : WithGil {
  int list;
  void run(State& state) const {
    PyObject* object = state.registers[list].as_object();
    if (PyList_CheckExact(object)) {
      if (PyList_SetSlice(object, 0, PyList_GET_SIZE(object), nullptr) != 0) throw py::error_already_set();
    } else {
      py::reinterpret_borrow<py::object>(object).attr("clear")();
    }
  }
};

struct Copy : WithGil {
  int to, from;
  void run(State& state) const { state.registers[to] = state.registers[from]; }
};

// A copy of what is not read again.
struct Move {
  int to, from;
  bool needs_gil(const State& state) const { return static_cast<bool>(state.registers[to].object); }
  void run(State& state) const { state.registers[to] = std::exchange(state.registers[from], {}); }
};

struct Free {
  int index;
  bool needs_gil(const State& state) const { return static_cast<bool>(state.registers[index].object); }
  void run(State& state) const {
    state.registers[index].tensor.reset();
    state.registers[index].object = {};
  }
};

// Upstream's assert_size_stride, which is asked where it is not plain that all is well.
struct Check : WithGil {
  PyObject* upstream;
  int index;
  Operands sizes, strides;
  PyObject* what;
  void run(State& state) const {
    Register& value = state.registers[index];
    const at::Tensor& tensor = value.as_tensor();
    const auto equals = [&](int64_t is, const Operand& wanted) { return is == wanted.as_integer(state); };
    if (std::equal(tensor.sizes().begin(), tensor.sizes().end(), sizes.begin(), sizes.end(), equals) &&
        std::equal(tensor.strides().begin(), tensor.strides().end(), strides.begin(), strides.end(), equals)) {
      return;
    }
    const py::object size = as_tuple(sizes, state), stride = as_tuple(strides, state);
    const std::array args{value.as_object(), size.ptr(), stride.ptr(), what};
    call(upstream, args.data(), args.size());
  }
};

// Upstream's copy_if_misaligned.
struct Align : WithGil {
  PyObject* upstream;
  int index;
  void run(State& state) const {
    constexpr uintptr_t kAlignment = 16;
    Register& value = state.registers[index];
    const at::Tensor& tensor = value.as_tensor();
    if (tensor.has_storage() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0) return;
    const std::array args{value.as_object()};
    value = {call(upstream, args.data(), args.size()), {}};
  }
};

struct Allocate {
  int to;
  Operands sizes, strides;
  at::ScalarType dtype;
  bool is_constant = are_integers(sizes) && are_integers(strides);
  bool needs_gil(const State& state) const { return !is_constant || state.registers[to].object; }
  void run(State& state) const {
    state.registers[to] = {{},
                           at::Tensor(at::detail::empty_strided_mtia(
                               as_integers(sizes, state), as_integers(strides, state), at::TensorOptions(dtype)))};
  }
};

struct View {
  int to, from;
  Operands sizes, strides;
  Operand offset;
  bool is_constant = are_integers(sizes) && are_integers(strides) && offset.integer;
  bool needs_gil(const State& state) const {
    return !is_constant || state.registers[to].object || !state.registers[from].tensor.defined();
  }
  void run(State& state) const {
    state.registers[to] = {
        {},
        torch::inductor::_reinterpret_tensor(state.registers[from].as_tensor(), as_integers(sizes, state),
                                             as_integers(strides, state), offset.as_integer(state))};
  }
};

struct Stream {
  int to;
  c10::DeviceIndex device;
  bool needs_gil(const State& state) const { return static_cast<bool>(state.registers[to].object); }
  void run(State& state) const {
    check_device_index(device);
    state.registers[to] = {{}, {}, MTIAStream::current(device)};
  }
};

struct Launch {
  PyObject* kernel;
  Operands arguments;
  int stream;
  size_t number = 0;              // among the program's launches
  std::vector<Launch*> together;  // with the first: the launches up to the next operation that calls Python
  // What it was bound to, the last is what it is. Others of this thread's or another's calls may still use the rest.
  std::vector<std::unique_ptr<const BoundLaunch>> bound = {};

  bool needs_gil(const State& state) const {
    return number >= state.bound.size() || state.bound[number] == nullptr ||
           std::any_of(arguments.begin(), arguments.end(), [&](const Operand& argument) {
             return argument.index >= 0 && !state.registers[argument.index].tensor.defined();
           });
  }
  void run(State& state) {
    if (number >= state.bound.size()) look_at_kernels(state);
    if (!run_bound(state)) run_unbound(state);
  }

 private:
  void look_at_kernels(State& state) const {
    LaunchCheck check;
    for (const Launch* launch : together) {
      const bool is_current = !launch->bound.empty() && check.is_current(launch->kernel, *launch->bound.back());
      state.bound.push_back(is_current ? launch->bound.back().get() : nullptr);
    }
  }

  bool run_bound(State& state) const {
    const BoundLaunch* launch = state.bound[number];
    const auto& on = state.registers[stream].stream;
    if (launch == nullptr || !on) return false;
    c10::SmallVector<ArgumentValue, 64> values;
    for (const Operand& argument : arguments) {
      values.push_back({argument.constant, nullptr});
      if (argument.index < 0) continue;
      Register& value = state.registers[argument.index];
      if (!value.is_tensor()) return false;
      values.back().tensor = &value.tensor;
    }
    if (!state.without_gil) state.without_gil.emplace();
    return launch->launch(*on, values.data());
  }

  void run_unbound(State& state) {
    state.without_gil.reset();
    c10::SmallVector<ArgumentValue, 64> values;
    for (const Operand& argument : arguments) values.push_back(argument.as_value(state));
    run_kernel(kernel, values.data(), values.size(), state.registers[stream].as_object());
    if (state.bound[number] != nullptr) return;
    for (size_t i = 0; i < values.size(); ++i) {
      if (arguments[i].index >= 0) values[i] = {};  // a number may be another next time
    }
    if (auto launch = BoundLaunch::make(kernel, values.data(), values.size())) bound.push_back(std::move(launch));
  }
};

// A statement of another form, as a function of what it reads that returns what it writes.
struct Call : WithGil {
  PyObject* function;
  Operands arguments;
  std::vector<int> to;
  void run(State& state) const {
    c10::SmallVector<PyObject*, 16> args;
    for (const Operand& argument : arguments) args.push_back(argument.as_object(state));
    py::object result = call(function, args.data(), args.size());
    if (to.size() == 1) {
      state.registers[to[0]] = {std::move(result), {}};
    } else if (!to.empty()) {
      assign(state, to, result);
    }
  }
};

struct Enter : WithoutPython {
  c10::DeviceIndex device;
  void run(State& state) const {
    check_device_index(device);
    state.guard.emplace(c10::Device(device_type(), device));
  }
};

struct Exit : WithoutPython {
  void run(State& state) const { state.guard.reset(); }
};

using Operation =
    std::variant<Unpack, Clear, Copy, Move, Free, Check, Align, Allocate, View, Stream, Launch, Call, Enter, Exit>;

// What they are made of
// ------------------------------------------------------------------------------------------------

struct Program {
  size_t registers = 0, parameters = 0;
  std::vector<Operation> operations;
  Operands results;
};

// Reads an operation, a tuple of a name and fields, whose Python objects it borrows.
class Reader {
 public:
  explicit Reader(py::tuple fields, size_t registers) : fields_(std::move(fields)), registers_(registers) {}

  PyObject* object() { return next().ptr(); }
  int index() { return checked_index(next().cast<int>()); }
  c10::DeviceIndex device() { return next().cast<c10::DeviceIndex>(); }
  at::ScalarType dtype() { return reinterpret_cast<THPDtype*>(next().ptr())->scalar_type; }
  std::vector<int> indices() {
    std::vector<int> result;
    for (const py::handle value : next()) result.push_back(checked_index(value.cast<int>()));
    return result;
  }
  Operand operand() { return operand(next()); }
  Operands operands() {
    Operands result;
    for (const py::handle value : next()) result.push_back(operand(value));
    return result;
  }

 private:
  py::handle next() {
    TORCH_CHECK_INDEX(place_ < PyTuple_GET_SIZE(fields_.ptr()), "an operation lacks its field ", place_);
    return PyTuple_GET_ITEM(fields_.ptr(), place_++);
  }
  int checked_index(int index) const {
    TORCH_CHECK_INDEX(index >= 0 && static_cast<size_t>(index) < registers_, "there is no register ", index);
    return index;
  }
  // A register is a tuple of its number; nothing else is a tuple.
  Operand operand(py::handle value) const {
    if (PyTuple_Check(value.ptr())) {
      return {checked_index(py::handle(PyTuple_GET_ITEM(value.ptr(), 0)).cast<int>()), nullptr, std::nullopt};
    }
    int overflow = 1;
    const int64_t integer = PyLong_Check(value.ptr()) ? PyLong_AsLongLongAndOverflow(value.ptr(), &overflow) : 0;
    return {-1, value.ptr(), overflow == 0 ? std::optional(integer) : std::nullopt};
  }

  py::tuple fields_;
  size_t registers_;
  Py_ssize_t place_ = 1;
};

// The fields of each are read in the order in which braces evaluate.
Operation read_operation(const std::string& name, Reader& r) {
  if (name == "unpack") return Unpack{{}, r.indices(), r.index()};
  if (name == "clear") return Clear{{}, r.index()};
  if (name == "copy") return Copy{{}, r.index(), r.index()};
  if (name == "move") return Move{r.index(), r.index()};
  if (name == "free") return Free{r.index()};
  if (name == "check") return Check{{}, r.object(), r.index(), r.operands(), r.operands(), r.object()};
  if (name == "align") return Align{{}, r.object(), r.index()};
  if (name == "allocate") return Allocate{r.index(), r.operands(), r.operands(), r.dtype()};
  if (name == "view") return View{r.index(), r.index(), r.operands(), r.operands(), r.operand()};
  if (name == "stream") return Stream{r.index(), r.device()};
  if (name == "launch") return Launch{r.object(), r.operands(), r.index(), 0, {}};
  if (name == "call") return Call{{}, r.object(), r.operands(), r.indices()};
  if (name == "enter") return Enter{{}, r.device()};
  if (name == "exit") return Exit{};
  throw py::value_error("there is no operation " + name);
}

void number_launches(std::vector<Operation>& operations) {
  size_t count = 0;
  Launch* first = nullptr;
  for (Operation& operation : operations) {
    if (std::holds_alternative<Call>(operation)) first = nullptr;
    auto* launch = std::get_if<Launch>(&operation);
    if (launch == nullptr) continue;
    launch->number = count++;
    first = first == nullptr ? launch : first;
    first->together.push_back(launch);
  }
}

// PreparedCall
// ---------------------------------------------------------------------------------------------------------

struct PyPreparedCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* weak_references;
  PyObject* source;  // what the program borrows from
  Program* program;  // owned
};

PyObject* prepared_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  // The registers are freed before the object that is called, which may be dropped meanwhile.
  const auto self = py::reinterpret_borrow<py::object>(object);
  Program& program = *reinterpret_cast<PyPreparedCall*>(object)->program;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  TORCH_CHECK_TYPE(count == program.parameters && (keywords == nullptr || PyTuple_GET_SIZE(keywords) == 0),
                   "prepared code takes ", program.parameters, " arguments by position, got ", count);
  State state;  // goes before the GIL is needed for anything else
  state.registers.resize(program.registers);
  for (size_t i = 0; i < count; ++i) state.registers[i].object = py::reinterpret_borrow<py::object>(args[i]);
  for (Operation& operation : program.operations) {
    std::visit(
        [&](auto& it) {
          if (it.needs_gil(state)) state.without_gil.reset();
          it.run(state);
        },
        operation);
  }
  state.without_gil.reset();
  return as_tuple(program.results, state).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* new_prepared_call(PyTypeObject* type, PyObject* args, PyObject* /*keywords*/) {
  HANDLE_TH_ERRORS
  auto program = std::make_unique<Program>();
  Py_ssize_t registers = 0;
  Py_ssize_t parameters = 0;
  PyObject* operations = nullptr;
  PyObject* results = nullptr;
  if (PyArg_ParseTuple(args, "nnO!O!:PreparedCall", &registers, &parameters, &PyTuple_Type, &operations, &PyTuple_Type,
                       &results) == 0) {
    return nullptr;
  }
  TORCH_CHECK_VALUE(0 <= parameters && parameters <= registers, "every parameter has a register");
  program->registers = static_cast<size_t>(registers);
  program->parameters = static_cast<size_t>(parameters);
  for (const py::handle operation : py::reinterpret_borrow<py::tuple>(operations)) {
    const auto fields = py::reinterpret_borrow<py::tuple>(operation);
    Reader reader(fields, program->registers);
    program->operations.push_back(read_operation(fields[0].cast<std::string>(), reader));
  }
  number_launches(program->operations);
  const py::tuple returned = py::make_tuple("return", py::reinterpret_borrow<py::object>(results));
  program->results = Reader(returned, program->registers).operands();
  auto* self = reinterpret_cast<PyPreparedCall*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = prepared_call;
  self->source = PyTuple_Pack(2, operations, results);
  self->program = program.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<PyPreparedCall*>(object)->source);
  return 0;
}

// Functions of generated code and the module that they belong to refer to one another.
int clear(PyObject* object) {
  auto* self = reinterpret_cast<PyPreparedCall*>(object);
  *self->program = Program{.parameters = std::numeric_limits<size_t>::max()};  // a call raises from now on
  Py_CLEAR(self->source);
  return 0;
}

void dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<PyPreparedCall*>(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  const std::unique_ptr<Program> program(self->program);
  Py_XDECREF(self->source);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace

void bind_prepared_call(py::module_& module) {
  static std::array<PyMemberDef, 3> members{
      PyMemberDef{"__vectorcalloffset__", T_PYSSIZET, offsetof(PyPreparedCall, vectorcall), READONLY, nullptr},
      PyMemberDef{"__weaklistoffset__", T_PYSSIZET, offsetof(PyPreparedCall, weak_references), READONLY, nullptr},
      PyMemberDef{}};
  static std::array<PyType_Slot, 7> slots{PyType_Slot{Py_tp_new, reinterpret_cast<void*>(&new_prepared_call)},
                                          PyType_Slot{Py_tp_dealloc, reinterpret_cast<void*>(&dealloc)},
                                          PyType_Slot{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                          PyType_Slot{Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                          PyType_Slot{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                          PyType_Slot{Py_tp_members, members.data()},
                                          PyType_Slot{}};
  static PyType_Spec spec{"torch_mtia._C.PreparedCall", sizeof(PyPreparedCall), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.attr("PreparedCall") = py::reinterpret_steal<py::object>(type);
}

}  // namespace torch_mtia
