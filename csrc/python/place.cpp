#include "place.h"

#include <ATen/record_function.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/utils/python_compat.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "../runtime/forks.h"

namespace torch_mtia {
namespace {

namespace py = pybind11;

// Note [Forward and backward]
// A node of autograd has the number that comes next on its thread when its operator is called, and RecordFunction tells
// that number. An operator that makes no node leaves it to the next one. So what was called last under a number has
// made the node: a row of the last numbers of each thread is enough.
class ForwardCalls {
 public:
  ForwardCalls() { runtime::hold_at_forks(runtime::ForkOrder::kObserver, mutex_); }
  void add(uint64_t thread, uint64_t number, std::shared_ptr<torch::CapturedTraceback> place) {
    const std::lock_guard lock(mutex_);
    auto& calls = threads_[thread];
    const size_t index = number % kCalls;
    if (index >= calls.size()) calls.resize(std::min(kCalls, std::max(index + 1, 2 * calls.size())));
    calls[index] = {number, std::move(place)};
  }
  std::shared_ptr<torch::CapturedTraceback> find(uint64_t thread, uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto calls = threads_.find(thread);
    if (calls == threads_.end()) return nullptr;
    const size_t index = number % kCalls;
    if (index >= calls->second.size() || calls->second[index].number != number) return nullptr;
    return calls->second[index].place;
  }
  void clear() {
    std::unordered_map<uint64_t, std::vector<Call>> old;
    const std::lock_guard lock(mutex_);
    old.swap(threads_);
  }

 private:
  static constexpr size_t kCalls = size_t{1} << 16;
  struct Call {
    uint64_t number = 0;
    std::shared_ptr<torch::CapturedTraceback> place;
  };
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::vector<Call>> threads_;
};

ForwardCalls& forward_calls() {
  static ForwardCalls& instance = *std::make_unique<ForwardCalls>().release();  // threads of autograd outlive all
  return instance;
}

// Note [Stacks inside of stacks]
// When a traceback dies, PyTorch keeps its code objects until the next one is gathered, and drops them then under a
// lock that the first takes, too. To drop them may run finalizers of the program, which free tensors, and where that is
// the sanitizer wants to know. So there is no traceback of what happens while one is gathered, on any thread; and they
// die then only, when nobody holds a lock of the sanitizer's.
class DeadTracebacks {
 public:
  DeadTracebacks() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }
  void add(std::shared_ptr<torch::CapturedTraceback> traceback) {
    const std::lock_guard lock(mutex_);
    dead_.push_back(std::move(traceback));
  }
  void drop() {
    std::vector<std::shared_ptr<torch::CapturedTraceback>> dead;
    {
      const std::lock_guard lock(mutex_);
      dead.swap(dead_);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<torch::CapturedTraceback>> dead_;
};

DeadTracebacks& dead_tracebacks() {
  static DeadTracebacks& instance = *std::make_unique<DeadTracebacks>().release();  // leaked: they die at exit, too
  return instance;
}

struct Gathering {
  static bool is_under_way;  // guarded by the GIL
  Gathering() { is_under_way = true; }
  ~Gathering() { is_under_way = false; }
};
bool Gathering::is_under_way = false;

// Null: see Note [Stacks inside of stacks].
std::shared_ptr<torch::CapturedTraceback> traceback() {
  if (!can_ask_python()) return nullptr;
  const py::gil_scoped_acquire gil;
  if (Gathering::is_under_way) return nullptr;
  const Gathering gathering;
  dead_tracebacks().drop();
  std::shared_ptr<torch::CapturedTraceback> gathered =
      torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  torch::CapturedTraceback* const address = gathered.get();
  return {address, [gathered = std::move(gathered)](torch::CapturedTraceback* /*address*/) mutable {
            dead_tracebacks().add(std::move(gathered));
          }};
}

Composites& composites() {
  static Composites& instance = *std::make_unique<Composites>().release();  // any thread may be in an operator
  return instance;
}
thread_local std::shared_ptr<CompositeCall> innermost;  // that the thread is in

void enter(const std::string& name) {
  for (CompositeCall* call = innermost.get(); call != nullptr; call = call->outer.get()) {
    if (name == call->replacer) call->has_replaced = true;
  }
  const auto found = composites().find(name);
  if (found == composites().end()) return;
  innermost = std::make_shared<CompositeCall>(found->first, found->second, innermost);
}

void leave(const std::string& name) {
  if (innermost != nullptr && innermost->name == name) innermost = std::shared_ptr(innermost->outer);
}

// Those of the last calls of backward(), of which few are under way at a time.
class ScaledTasks {
 public:
  ScaledTasks() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }
  void add(int task) {
    const std::lock_guard lock(mutex_);
    tasks_[next_++ % tasks_.size()] = task;
  }
  bool has(int task) {
    const std::lock_guard lock(mutex_);
    return std::find(tasks_.begin(), tasks_.end(), task) != tasks_.end();
  }

 private:
  std::mutex mutex_;
  std::vector<int> tasks_ = std::vector<int>(64, -1);
  size_t next_ = 0;
};

ScaledTasks& scaled_tasks() {
  static ScaledTasks& instance = *std::make_unique<ScaledTasks>().release();  // threads of autograd outlive all
  return instance;
}

std::unique_ptr<at::ObserverContext> called(const at::RecordFunction& function) {
  enter(function.name());
  if (function.seqNr() >= 0) {
    forward_calls().add(at::RecordFunction::currentThreadId(), function.seqNr(), traceback());
  }
  return nullptr;
}

void returned(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  leave(function.name());
}

std::string text_of(PyObject* text) {
  const char* utf8 = PyUnicode_AsUTF8(text);
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 != nullptr ? utf8 : "?";
}

// The frames of a thread that waits for autograd's engine; empty: it does not.
Lines lines_of_waiting(PyThreadState* thread) {
  Lines lines;
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  while (frame) {
    auto* of = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* code = PyFrame_GetCode(of);
    lines.push_back({text_of(code->co_filename), PyFrame_GetLineNumber(of), text_of(code->co_name)});
    Py_DECREF(code);
    if (lines.size() == 1 && lines.front().function != "_engine_run_backward") return {};
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(of)));
  }
  return lines;
}

// Where backward() was called whose work the calling thread does; null: several threads wait for one, or none does.
// Looked up once for each call.
std::shared_ptr<const Lines> place_of_backward() {
  thread_local int last_task = -1;
  thread_local std::shared_ptr<const Lines> last;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == last_task) return last;
  last_task = task;
  last = nullptr;
  if (!can_ask_python()) return last;
  const py::gil_scoped_acquire gil;
  size_t waiting = 0;
  for (auto* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    Lines lines = lines_of_waiting(thread);
    if (lines.empty()) continue;
    ++waiting;
    last = std::make_shared<const Lines>(std::move(lines));
  }
  if (waiting != 1) last = nullptr;
  return last;
}

// Of torch.nn.Module.__call__, whose first variable is the module.
PyCodeObject* code_of_call = nullptr;

size_t module_of(const py::object& frame) {
  const auto variables = py::reinterpret_steal<py::object>(PyObject_GetAttrString(frame.ptr(), "f_locals"));
  const auto module =
      py::reinterpret_steal<py::object>(variables ? PyMapping_GetItemString(variables.ptr(), "self") : nullptr);
  if (!module) PyErr_Clear();
  return reinterpret_cast<size_t>(module.ptr());
}

}  // namespace

std::shared_ptr<Place> Place::current() {
  auto place = std::make_shared<Place>();
  place->here = traceback();
  place->within = innermost;
  if (const auto node = torch::autograd::get_current_node()) {
    place->node = node->name();
    place->forward = forward_calls().find(node->thread_id(), node->sequence_nr());
    place->backward = place_of_backward();
    place->is_scaled = scaled_tasks().has(torch::autograd::get_current_graph_task_id());
  }
  return place;
}

void follow_composites(Composites followed) {
  if (composites().empty()) composites() = std::move(followed);
}

void gradients_are_scaled() {
  scaled_tasks().add(torch::autograd::get_current_graph_task_id());
}

void follow_forward(bool on) {
  static std::optional<at::CallbackHandle> callback;
  if (on && !callback) {
    callback =
        at::addGlobalCallback(at::RecordFunctionCallback(&called, &returned).scopes({at::RecordScope::FUNCTION}));
  } else if (!on && callback) {
    at::removeCallback(*callback);
    callback.reset();
    forward_calls().clear();
  }
}

void know_modules() {
  if (code_of_call != nullptr) return;
  const py::object call = py::module_::import("torch").attr("nn").attr("Module").attr("_wrapped_call_impl");
  code_of_call = reinterpret_cast<PyCodeObject*>(py::object(call.attr("__code__")).release().ptr());
}

uint64_t site_of_caller() {
  if (!can_ask_python()) return 0;
  const py::gil_scoped_acquire gil;
  size_t site = 0;
  auto frame =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* const of = reinterpret_cast<PyFrameObject*>(frame.ptr());
    PyCodeObject* const code = PyFrame_GetCode(of);
    Py_DECREF(code);  // the frame has it
    const auto instruction = static_cast<size_t>(PyFrame_GetLasti(of));
    site = c10::hash_combine(site, c10::hash_combine(reinterpret_cast<size_t>(code), instruction));
    if (code == code_of_call) site = c10::hash_combine(site, module_of(frame));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(of)));
  }
  return site;
}

}  // namespace torch_mtia
