// Where in the program something happened, for people.
#pragma once

#include <torch/csrc/Export.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>
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

}  // namespace torch_mtia
