#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../aten/HostAccesses.h"
#include "../core/Stream.h"
#include "../core/Waits.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "../runtime/loader.h"
#include "../sanitizer/Sanitizer.h"
#include "bindings.h"
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

// Findings that are repeated at the same lines of the program: the first of them, with the number of all. Their
// contexts are Places.
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

// By FindingKind.
constexpr const char* kKinds[] = {"race",          "freed too early",       "use after free", "uninitialized",
                                  "out of bounds", "race between programs", "several values", "not finite"};

py::object describe(const std::shared_ptr<const sanitizer::KernelLine>& line) {
  if (line == nullptr) return py::none();
  return py::make_tuple(line->file, line->line, line->argument);
}

py::list describe(const Lines& lines) {
  py::list list;
  for (const Line& each : lines) {
    py::dict frame;
    frame["filename"] = each.file;
    frame["line"] = each.line;
    frame["name"] = each.function;
    list.append(frame);
  }
  return list;
}

py::dict frames_of(std::shared_ptr<void> traceback, Frames& frames) {
  py::dict result;
  frames.set(result, traceback);
  return result;
}

void add_place(py::dict& target, const sanitizer::Context& context, Frames& frames) {
  const auto* place = static_cast<const Place*>(context.get());
  frames.set(target, place != nullptr ? place->here : nullptr);
  py::list within;  // operators made of others, whose numbers were replaced
  for (const CompositeCall* call = place != nullptr ? place->within.get() : nullptr; call != nullptr;
       call = call->outer.get()) {
    if (call->has_replaced) within.append(call->name);
  }
  target["within"] = within;
  target["is_scaled"] = place != nullptr && place->is_scaled;
  target["node"] = place != nullptr ? place->node : "";
  target["forward"] = frames_of(place != nullptr ? place->forward : nullptr, frames);
  py::dict backward;
  backward["frames"] = place != nullptr && place->backward != nullptr ? describe(*place->backward) : py::list();
  target["backward"] = backward;
}

py::dict describe(const sanitizer::Item& item, Frames& frames) {
  py::dict result;
  result["operator"] = item.name;
  result["is_collective"] = item.is_collective;
  result["device"] = py::none();
  result["stream"] = py::none();
  if (item.stream != nullptr) {
    const auto stream = MTIAStream::of(*static_cast<const core::Stream*>(item.stream));
    result["device"] = static_cast<int>(stream.unwrap().device_index());
    result["stream"] = stream.unwrap().id();
  }
  add_place(result, item.context, frames);
  return result;
}

py::dict describe(const sanitizer::Item& item, size_t operand, Frames& frames) {
  const sanitizer::Operand& what = item.operands[operand];
  py::dict result = describe(item, frames);
  result["tensor"] = what.type;
  result["address"] = what.region.begin();
  result["size"] = what.region.range().size();
  result["writes"] = what.writes;
  result["line"] = describe(what.line);
  result["program"] = py::none();
  return result;
}

py::dict describe(const sanitizer::Item& item, const sanitizer::KernelAccess& access, Frames& frames) {
  py::dict result = describe(item, frames);
  result["tensor"] = std::to_string(access.size) + (access.size == 1 ? " byte" : " bytes");
  result["address"] = access.address;
  result["size"] = access.size;
  result["writes"] = access.writes;
  result["line"] = describe(access.line);
  result["program"] = py::make_tuple(access.program[0], access.program[1], access.program[2]);
  return result;
}

// Errors of work stay with the streams.
void wait_for_all_streams(bool for_program) {
  if (!runtime::is_initialized()) return;
  const core::WithoutGil without_gil;
  const auto wait = [&](const MTIAStream& stream) {
    if (stream.core().wait_unless_captured() && for_program) core::program_has_waited(stream.core());
  };
  try {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      const MTIAStream first = MTIAStream::default_stream(device);
      wait(first);
      for (const MTIAStream& other : first.others()) wait(other);
    }
  } catch (const runtime::DriverError&) {
    // Nothing runs in a child that was forked, nor on a device that is lost.
  }
}

// What is not finite is known when work has run.
void wait_for_numbers() {
  if (sanitizer::Sanitizer::watches_numbers()) wait_for_all_streams(/*for_program=*/false);
}

// Raises RuntimeError inside of work: the wait could be for work that is queued after it.
void wait() {
  TORCH_CHECK(!core::RunningWork::on_this_thread(),
              "the sanitizer waits for launched work, which a host function must not do: the work may come after the "
              "function. Call reports() and stop() elsewhere");
  sanitizer::Sanitizer::wait();
}

py::list take() {
  wait_for_numbers();
  Frames frames;
  py::list list;
  for (const sanitizer::Finding& finding : merge_findings(sanitizer::Sanitizer::take())) {
    py::dict entry;
    entry["kind"] = kKinds[static_cast<size_t>(finding.kind)];
    if (const sanitizer::KernelAccesses* kernel = finding.kernel.get()) {
      entry["access"] = describe(*finding.item, kernel->access, frames);
      if (kernel->earlier) entry["earlier"] = describe(*finding.item, *kernel->earlier, frames);
      entry["bounds"] = py::make_tuple(kernel->tensor.address, kernel->tensor.size);
    } else {
      entry["access"] = describe(*finding.item, finding.operand, frames);
      if (finding.kind == sanitizer::FindingKind::kUninitialized) entry["access"]["writes"] = false;  // though it may
    }
    if (finding.earlier != nullptr) entry["earlier"] = describe(*finding.earlier, finding.earlier_operand, frames);
    py::dict memory;
    add_place(memory, finding.memory, frames);
    entry["memory"] = memory;
    entry["count"] = finding.count;
    entry["nan"] = finding.numbers.nan;
    entry["infinite"] = finding.numbers.infinite;
    entry["reads_infinite"] = finding.given.infinite != 0;
    list.append(entry);
  }
  frames.resolve();
  return list;
}

// By sites: the frames of each, and what has become of its blocks, counted in items of work.
py::list live_blocks() {
  Frames frames;
  py::list list;
  for (const auto& [site, blocks] : sanitizer::Sanitizer::live_blocks()) {
    py::dict entry;
    entry["executions"] = site.executions;
    entry["rises"] = site.rises;
    entry["last_rise"] = site.last_rise;
    py::list described;
    for (const sanitizer::LiveBlock& block : blocks) {
      described.append(py::make_tuple(block.address, block.size, block.execution, block.allocated, block.used));
    }
    entry["blocks"] = described;
    add_place(entry, site.context, frames);
    list.append(entry);
  }
  frames.resolve();
  return list;
}

}  // namespace

void bind_sanitizer(py::module_& m) {
  m.def("_sanitizer_start", [](bool order, bool freed, bool initialized, bool kernels, bool numbers, bool bounds,
                               const Composites& composites) {
    torch::installCapturedTracebackPython();
    know_modules();
    follow_composites(composites);
    follow_forward(true);
    static constexpr sanitizer::Sanitizer::Program kProgram{[]() -> sanitizer::Context { return Place::current(); },
                                                            &site_of_caller, &merge_findings};
    sanitizer::Sanitizer::start({order, freed, initialized, kernels, bounds}, numbers, kProgram);
    watch_host_accesses(order);
  });
  m.def("_sanitizer_stop", [] {
    wait_for_numbers();
    watch_host_accesses(false);
    sanitizer::Sanitizer::stop();
    follow_forward(false);
  });
  m.def("_sanitizer_is_running", &sanitizer::Sanitizer::is_running);
  m.def("_sanitizer_wait", &wait, py::call_guard<py::gil_scoped_release>());
  // As if the program had waited for all devices.
  m.def("_sanitizer_order_all", [] { wait_for_all_streams(/*for_program=*/true); });
  m.def("_sanitizer_reads", [](const char* name, const at::Tensor& tensor) { notify_host_read(name, tensor); });
  m.def("_sanitizer_gradients_are_scaled", &gradients_are_scaled);
  m.def("_sanitizer_take", &take);
  m.def("_sanitizer_unlisted", &sanitizer::Sanitizer::unlisted);
  m.def("_sanitizer_num_forgotten", &sanitizer::Sanitizer::num_forgotten);
  m.def("_sanitizer_live_blocks", &live_blocks);
}

}  // namespace torch_mtia
