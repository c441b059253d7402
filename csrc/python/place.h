// Where in the program something is done, also in backward(), which runs on threads without Python code.
#pragma once

#include <torch/csrc/Export.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// The header that declares these, torch/csrc/profiler/python/combined_traceback.h, includes one that wheels lack.
namespace torch {
TORCH_API std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
TORCH_PYTHON_API void installCapturedTracebackPython();
}  // namespace torch

namespace torch_mtia {

// False: the interpreter has ended, or ends, and a thread that wants its lock would never return. Some thread may begin
// to end it right after the answer.
inline bool can_ask_python() {
  return Py_IsInitialized() != 0 && (Py_IsFinalizing() == 0 || PyGILState_Check() != 0);
}

// Turns contexts into lists of frames, all at once, because looking up symbols is slow.
class Frames {
 public:
  void set(pybind11::dict target, const std::shared_ptr<void>& context) {
    target["frames"] = pybind11::list();
    if (context == nullptr) return;
    targets_.push_back({std::move(target), index_of(static_cast<torch::CapturedTraceback*>(context.get()))});
    contexts_.push_back(context);
  }

  void resolve() {
    const std::vector<pybind11::object> frames = torch::py_symbolize(tracebacks_);
    for (auto& [target, index] : targets_) target["frames"] = frames.at(index);
  }

 private:
  size_t index_of(torch::CapturedTraceback* traceback) {
    const auto [entry, is_new] = indices_.try_emplace(traceback, tracebacks_.size());
    if (is_new) tracebacks_.push_back(traceback);
    return entry->second;
  }

  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::unordered_map<torch::CapturedTraceback*, size_t> indices_;
  std::vector<std::pair<pybind11::dict, size_t>> targets_;
  std::vector<std::shared_ptr<void>> contexts_;  // keep the tracebacks alive
};

// A line of Python code.
struct Line {
  std::string file;
  int line;
  std::string function;
};
using Lines = std::vector<Line>;  // innermost first

// A call of an operator that is made of others, one of which may put numbers in place of what the rest has made.
struct CompositeCall {
  CompositeCall(const std::string& of, const std::string& by, std::shared_ptr<CompositeCall> around)
      : name(of), replacer(by), outer(std::move(around)), has_replaced(by.empty()) {}

  const std::string& name;
  const std::string& replacer;  // empty: it always does
  const std::shared_ptr<CompositeCall> outer;
  std::atomic<bool> has_replaced;
};

struct Place {
  std::shared_ptr<torch::CapturedTraceback> here;
  std::shared_ptr<const CompositeCall> within;  // innermost; null: of none
  bool is_scaled = false;                       // in backward() of what GradScaler.scale() has returned
  // In backward(): the node of autograd, where the operator was called that made it, and where backward() was.
  std::string node;
  std::shared_ptr<torch::CapturedTraceback> forward;
  std::shared_ptr<const Lines> backward;

  // Of the calling thread.
  static std::shared_ptr<Place> current();
};

// The operators that CompositeCall is about, each with what replaces its numbers. Only the first call counts.
using Composites = std::unordered_map<std::string, std::string>;
void follow_composites(Composites composites);

// The backward() that the calling thread is in is one of scaled gradients.
void gradients_are_scaled();

// From now on remembers, or no more, where operators are called that autograd makes nodes of.
void follow_forward(bool on);

// Before the first site: with the GIL. Raises what Python does.
void know_modules();

// Where the calling thread allocates, as a number: the same for the same lines of the program within the same modules.
// The layers of a deep network are different sites, though they share their lines. 0: the thread has no Python code.
uint64_t site_of_caller();

}  // namespace torch_mtia
