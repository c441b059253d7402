#include "Sanitizer.h"

#include <memory>
#include <string>
#include <utility>

#include "../core/DriverInfo.h"
#include "../core/Event.h"
#include "../core/RunningWork.h"
#include "../core/Stream.h"
#include "NamedOperand.h"
#include "Numbers.h"

namespace torch_mtia::sanitizer {
namespace {

class OperandsOf final : public core::OperandSink {
 public:
  void add(const core::Operand& each) override { operands.push_back(name(each)); }
  void add_host(const core::Operand& each) override {
    if (each.is_shared) operands.push_back(name(each));
  }

  std::vector<Operand> operands;
};

}  // namespace

Sanitizer& Sanitizer::get() {
  static Sanitizer& instance = *std::unique_ptr<Sanitizer>(new Sanitizer()).release();  // leaked, see the class
  return instance;
}

void Sanitizer::start(Checks checks, bool numbers, ContextOf context) {
  Sanitizer& instance = get();
  instance.watches_numbers_ = numbers;
  instance.context_of_ = context;
  instance.detector_.restart(checks);
  {
    const std::lock_guard lock(instance.mutex_);
    instance.checks_ = checks;
    instance.graphs_.clear();
    instance.unlisted_.clear();
  }
  core::observer = &instance;
}

void Sanitizer::stop() {
  core::observer = nullptr;
  get().watches_numbers_ = false;
  get().detector_.restart({});
}

std::vector<Finding> Sanitizer::take() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return std::exchange(instance.findings_, {});
}

std::vector<LiveBlock> Sanitizer::live_blocks() {
  return get().detector_.live_blocks();
}

std::map<std::string, uint64_t> Sanitizer::unlisted() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return instance.unlisted_;
}

void Sanitizer::keep(std::vector<Finding> found) {
  if (found.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Finding& each : found) findings_.push_back(std::move(each));
}

// Null: nobody watched when it was captured.
std::shared_ptr<Sanitizer::Captured> Sanitizer::captured(const core::Graph* graph) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  return found != graphs_.end() ? found->second : nullptr;
}

std::vector<std::shared_ptr<Sanitizer::Captured>> Sanitizer::capturing() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Captured>> all;
  for (const auto& [graph, of] : graphs_) {
    if (of->is_capturing) all.push_back(of);
  }
  return all;
}

// What running work submits is part of it: it lists what it touches as a whole. But for functions of the host.
std::shared_ptr<core::RunObserver> Sanitizer::submits(const core::Stream& stream, const char* name, List list,
                                                      const void* work) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return nullptr;
  OperandsOf listed;
  if (list != nullptr) {
    list(work, listed);
  } else {
    const std::lock_guard lock(mutex_);
    ++unlisted_[name != nullptr ? name : "work"];
  }
  Item item{.name = name != nullptr ? name : "work",
            .stream = &stream,
            .function = running != nullptr ? running->host_function() : 0,
            .is_listed = list != nullptr,
            .context = context()};
  std::shared_ptr<core::RunObserver> observer;
  if (watches_numbers_ && list != nullptr && core::driver_info().can(MTIA_CAPABILITY_HOST_VIEW)) {
    observer = std::make_shared<NumbersObserver>(
        item, [] { return get().watches_numbers_.load(std::memory_order_relaxed); },
        [](Finding finding) { get().keep({std::move(finding)}); });
  }
  item.operands = std::move(listed.operands);
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) {
    keep(detector_.submit(std::move(item)));
  } else if (const std::shared_ptr<Captured> of = captured(graph)) {
    {
      const std::lock_guard lock(mutex_);
      of->is_listed = of->is_listed && item.is_listed;
      for (Operand each : item.operands) {
        each.block = detector_.hold(each.region.begin());
        of->operands.push_back(std::move(each));
      }
    }
    keep(of->nodes.submit(std::move(item)));
  }
  return observer;
}

void Sanitizer::records(const core::Event& event, const core::Stream& stream) {
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) return detector_.record(event.handle(), &stream);
  detector_.forget(event.handle());
  if (const auto of = captured(graph)) of->nodes.record(event.handle(), &stream);
}

void Sanitizer::waits(const core::Stream& stream, const core::Event& event) {
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) return detector_.wait(&stream, event.handle());
  if (const auto of = captured(graph)) of->nodes.wait(&stream, event.handle());
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
  const auto of = std::make_shared<Captured>();
  const std::lock_guard lock(mutex_);
  of->nodes.restart(checks_);
  graphs_[&graph] = of;
}

void Sanitizer::has_captured(const core::Graph& graph) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(&graph);
  if (found != graphs_.end()) found->second->is_capturing = false;
}

void Sanitizer::destroys(const core::Graph& graph) noexcept {
  const std::lock_guard lock(mutex_);
  graphs_.erase(&graph);
}

void Sanitizer::launches(const core::Graph& graph, const core::Stream& stream) {
  Item item{.name = "graph", .stream = &stream, .is_listed = false, .context = context()};
  if (const auto of = captured(&graph)) {
    const std::lock_guard lock(mutex_);
    item.is_listed = of->is_listed;
    item.operands = of->operands;
  }
  keep(detector_.submit(std::move(item)));
}

// The memory of a graph is free for its later nodes, but stays in use for everybody else.
void Sanitizer::allocated(uint64_t address, uint64_t size, bool is_private) {
  const bool is_seen = !core::RunningWork::on_this_thread();  // what running work writes first is not
  const Context where = is_seen ? context() : nullptr;
  detector_.allocate(address, size, is_private, /*is_written=*/!is_seen || is_private, where);
  if (!is_private) return;
  for (const auto& of : capturing()) of->nodes.allocate(address, size, /*is_private=*/false, !is_seen, where);
}

void Sanitizer::freed(uint64_t address) noexcept {
  const Context where = core::RunningWork::on_this_thread() ? nullptr : context();
  detector_.free(address, where);
  for (const auto& of : capturing()) of->nodes.free(address, where);
}

void Sanitizer::touches(const char* name, List list, const void* work) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return;
  OperandsOf listed;
  list(work, listed);
  keep(detector_.submit({.name = name,
                         .stream = running != nullptr ? &running->stream() : nullptr,
                         .function = running != nullptr ? running->host_function() : 0,
                         .operands = std::move(listed.operands),
                         .context = context()}));
}

uint64_t Sanitizer::submits_host_function(const core::Stream& stream) {
  const uint64_t number = ++num_host_functions_;
  detector_.begin_function(number, &stream);
  return number;
}

void Sanitizer::ended_host_function(uint64_t number) noexcept {
  detector_.end_function(number);
}

}  // namespace torch_mtia::sanitizer
