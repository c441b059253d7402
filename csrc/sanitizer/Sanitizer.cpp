#include "Sanitizer.h"

#include <memory>
#include <string>
#include <utility>

#include "../core/Event.h"
#include "../core/RunningWork.h"
#include "../core/Stream.h"

namespace torch_mtia::sanitizer {
namespace {

class OperandsOf final : public core::OperandSink {
 public:
  void add(const core::Operand& each) override {
    std::vector<int64_t> strides(each.strides.begin(), each.strides.end());
    for (int64_t& stride : strides) stride *= each.stride_unit;
    operands.push_back({Region(each.address, each.element_size, each.sizes, strides), each.writes, type_of(each)});
  }

  std::vector<Operand> operands;

 private:
  static std::string type_of(const core::Operand& each) {
    if (each.dtype[0] == '\0') return std::to_string(each.element_size) + " bytes";
    std::string text = each.dtype;
    text += '[';
    for (size_t d = 0; d < each.sizes.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(each.sizes[d]);
    return text + ']';
  }
};

}  // namespace

Sanitizer& Sanitizer::get() {
  static Sanitizer& instance = *std::unique_ptr<Sanitizer>(new Sanitizer()).release();  // leaked, see the class
  return instance;
}

void Sanitizer::start(Checks checks, ContextOf context) {
  Sanitizer& instance = get();
  instance.context_of_ = context;
  instance.detector_.restart(checks);
  core::observer = &instance;
}

void Sanitizer::stop() {
  core::observer = nullptr;
  get().detector_.restart({});
}

std::vector<Finding> Sanitizer::take() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return std::exchange(instance.findings_, {});
}

void Sanitizer::keep(std::vector<Finding> found) {
  if (found.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Finding& each : found) findings_.push_back(std::move(each));
}

// What running work submits is part of it: it lists what it touches as a whole.
void Sanitizer::submits(const core::Stream& stream, const char* name, List list, const void* work) {
  if (core::RunningWork::on_this_thread()) return;
  OperandsOf listed;
  if (list != nullptr) list(work, listed);
  if (const core::Graph* graph = stream.graph()) {
    const std::lock_guard lock(mutex_);
    auto& operands = graphs_[graph];
    for (Operand& each : listed.operands) operands.push_back(std::move(each));
    return;
  }
  keep(detector_.submit({.name = name != nullptr ? name : "work",
                         .stream = &stream,
                         .is_listed = list != nullptr,
                         .operands = std::move(listed.operands),
                         .context = context()}));
}

void Sanitizer::records(const core::Event& event, const core::Stream& stream) {
  if (stream.graph() == nullptr) detector_.record(event.handle(), &stream);
}

void Sanitizer::waits(const core::Stream& stream, const core::Event& event) {
  if (stream.graph() == nullptr) detector_.wait(&stream, event.handle());
}

void Sanitizer::host_waited(const core::Stream& stream) {
  detector_.host_waits_for_stream(&stream);
}

void Sanitizer::host_waited(const core::Event& event) {
  detector_.host_waits_for_event(event.handle());
}

void Sanitizer::destroys(const core::Event& event) noexcept {
  detector_.forget(event.handle());
}

void Sanitizer::captures(const core::Graph& graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(&graph);
}

void Sanitizer::launches(const core::Graph& graph, const core::Stream& stream) {
  std::vector<Operand> operands;
  {
    const std::lock_guard lock(mutex_);
    operands = graphs_[&graph];
  }
  keep(detector_.submit({.name = "graph", .stream = &stream, .operands = std::move(operands), .context = context()}));
}

void Sanitizer::allocated(uint64_t address, uint64_t size, bool is_private) {
  // What running work or a graph writes first is not seen.
  const bool is_seen = !is_private && !core::RunningWork::on_this_thread();
  detector_.allocate(address, size, is_private, /*is_written=*/!is_seen, is_seen ? context() : nullptr);
}

void Sanitizer::freed(uint64_t address) noexcept {
  detector_.free(address, core::RunningWork::on_this_thread() ? nullptr : context());
}

}  // namespace torch_mtia::sanitizer
