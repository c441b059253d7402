#include "merge_findings.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "frames.h"
#include "place.h"

namespace torch_mtia {
namespace {

namespace py = pybind11;

// Texts that are the same for findings at the same lines of the program.
class Keys {
 public:
  explicit Keys(const std::vector<sanitizer::Finding>& findings) {
    for (const sanitizer::Finding& each : findings) {
      for (const Place* place : places_of(each)) {
        if (place == nullptr) continue;
        note(place->here);
        note(place->forward);
      }
    }
    const torch::SymbolizedTracebacks symbolized = torch::symbolize(tracebacks_);
    for (const torch::unwind::Frame& each : symbolized.all_frames) {
      frames_.push_back(number_of(each.filename + ':' + std::to_string(each.lineno) + ':' + each.funcname));
    }
    frames_of_ = symbolized.tracebacks;
  }

  std::string of(const sanitizer::Finding& finding) {
    key_.clear();
    add(static_cast<uint64_t>(finding.kind));
    add(finding.item->name);
    if (finding.kernel != nullptr) {
      add(finding.kernel->access.line);
      if (finding.kernel->earlier) add(finding.kernel->earlier->line);
    } else {
      add(*finding.item, finding.operand);
    }
    if (finding.earlier != nullptr) {
      add(finding.earlier->name);
      add(*finding.earlier, finding.earlier_operand);
    }
    for (const Place* place : places_of(finding)) add(place);
    return key_;
  }

 private:
  static std::vector<const Place*> places_of(const sanitizer::Finding& finding) {
    std::vector<const Place*> places;
    const auto add = [&](const sanitizer::Context& context) {
      places.push_back(static_cast<const Place*>(context.get()));
    };
    add(finding.item->context);
    add(finding.memory);
    if (finding.earlier != nullptr) add(finding.earlier->context);
    return places;
  }
  void note(const std::shared_ptr<torch::CapturedTraceback>& traceback) {
    if (traceback != nullptr && indices_.try_emplace(traceback.get(), tracebacks_.size()).second) {
      tracebacks_.push_back(traceback.get());
    }
  }
  size_t number_of(const std::string& text) { return numbers_.try_emplace(text, numbers_.size()).first->second; }

  void add(uint64_t number) { key_ += std::to_string(number) + ','; }
  void add(const std::string& text) { add(number_of(text)); }
  void add(const std::shared_ptr<const sanitizer::KernelLine>& line) {
    if (line != nullptr) add(line->file + ':' + std::to_string(line->line) + ':' + line->argument);
  }
  void add(const sanitizer::Item& item, size_t operand) {
    add(operand);
    add(item.operands[operand].line);
  }
  void add(const std::shared_ptr<torch::CapturedTraceback>& traceback) {
    key_ += ';';
    if (traceback == nullptr) return;
    for (const uint64_t frame : frames_of_[indices_.at(traceback.get())]) add(frames_[frame]);
  }
  void add(const Place* place) {
    key_ += '|';
    if (place == nullptr) return;
    add(place->is_scaled ? 1 : 0);
    for (const CompositeCall* call = place->within.get(); call != nullptr; call = call->outer.get()) {
      add(call->name);
      add(call->has_replaced ? 1 : 0);
    }
    add(place->node);
    add(place->here);
    add(place->forward);
    if (place->backward == nullptr) return;
    for (const Line& each : *place->backward) add(each.file + ':' + std::to_string(each.line) + ':' + each.function);
  }

  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::unordered_map<torch::CapturedTraceback*, size_t> indices_;
  std::unordered_map<std::string, size_t> numbers_;  // of texts
  std::vector<size_t> frames_;                       // their numbers
  std::vector<std::vector<uint64_t>> frames_of_;     // tracebacks
  std::string key_;
};

}  // namespace

std::vector<sanitizer::Finding> merge_findings(std::vector<sanitizer::Finding> findings) {
  if (findings.size() < 2 || !can_ask_python()) return findings;
  const py::gil_scoped_acquire gil;
  Keys keys(findings);
  std::vector<sanitizer::Finding> merged;
  std::unordered_map<std::string, size_t> known;
  for (sanitizer::Finding& each : findings) {
    const auto [first, is_new] = known.try_emplace(keys.of(each), merged.size());
    if (is_new) {
      merged.push_back(std::move(each));
    } else {
      merged[first->second].count += each.count;
    }
  }
  return merged;
}

}  // namespace torch_mtia
