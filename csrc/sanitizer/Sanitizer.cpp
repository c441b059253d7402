#include "Sanitizer.h"

#include <algorithm>
#include <chrono>
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

constexpr std::chrono::seconds kLongestWait{60};

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

void Sanitizer::start(Checks checks, bool numbers, ContextOf context, SiteOf site) {
  Sanitizer& instance = get();
  instance.watches_numbers_ = numbers;
  instance.context_of_ = context;
  instance.site_of_ = checks.freed ? site : nullptr;
  instance.checks_bounds_ = checks.freed;
  instance.log_.clear();
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
  get().log_.clear();
  get().watches_numbers_ = false;
  get().detector_.restart({});
}

void Sanitizer::wait() {
  get().log_.wait(kLongestWait);
}

std::vector<Finding> Sanitizer::take() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return std::exchange(instance.findings_, {});
}

std::vector<LiveSite> Sanitizer::live_blocks() {
  wait();
  return get().detector_.live_blocks();
}

std::map<std::string, uint64_t> Sanitizer::unlisted() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return instance.unlisted_;
}

void Sanitizer::count_unlisted(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++unlisted_[name];
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

// A replay reads what was there at its capture, whoever has that memory now.
void Sanitizer::add(const core::Graph* graph, Item item, Node node) {
  const std::shared_ptr<Captured> of = captured(graph);
  if (of == nullptr) return;
  for (Operand& each : node.operands) {
    const auto block = std::make_shared<uint64_t>(0);
    each.block = block;
    log_.add([this, block, address = each.region.begin()] { *block = detector_.hold(address); });
  }
  {
    const std::lock_guard lock(mutex_);
    of->nodes.push_back(std::move(node));
  }
  keep(of->order.submit(std::move(item)));
}

// What running work submits is part of it: it lists what it touches as a whole. But for functions of the host.
std::shared_ptr<core::RunObserver> Sanitizer::submits(const core::Stream& stream, const char* name, List list,
                                                      const void* work) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return nullptr;
  if (name == nullptr) name = "work";
  OperandsOf listed;
  if (list != nullptr) {
    list(work, listed);
  } else {
    count_unlisted(name);
  }
  // What it reads first: an operand in place is read before it is written.
  std::stable_partition(listed.operands.begin(), listed.operands.end(),
                        [](const Operand& each) { return !each.writes; });
  Item item{.name = name,
            .stream = &stream,
            .function = running != nullptr ? running->host_function() : 0,
            .is_listed = list != nullptr,
            .operands = {},
            .context = context()};
  std::shared_ptr<core::RunObserver> observer;
  const bool moves_others = item.name.starts_with("c10d::");  // numbers of other processes
  if (watches_numbers_ && list != nullptr && !moves_others && core::driver_info().can(MTIA_CAPABILITY_HOST_VIEW)) {
    observer = std::make_shared<NumbersObserver>(
        item, [] { return get().watches_numbers_.load(std::memory_order_relaxed); },
        [](Finding finding) { get().keep({std::move(finding)}); });
  }
  item.operands = std::move(listed.operands);
  const auto length = [](const Operand& each) { return each.region.end() - each.region.begin(); };
  item.copies = item.name == "copy" && item.operands.size() == 2 && item.operands[0].is_moved &&
                length(item.operands[0]) == length(item.operands[1]);
  if (const core::Graph* graph = stream.graph()) {
    Node node{.name = name, .is_listed = item.is_listed, .operands = item.operands};
    add(graph, std::move(item), std::move(node));
  } else {
    log_.add([this, item = std::move(item)]() mutable { keep(detector_.submit(std::move(item))); });
  }
  return observer;
}

std::shared_ptr<core::KernelWatcher> Sanitizer::submits(const core::Stream& stream, const char* name,
                                                        const mtia_kernel_launch& launch) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return nullptr;
  if (std::any_of(launch.grid, launch.grid + 3, [](int32_t size) { return size <= 0; })) return nullptr;
  const auto watcher = std::make_shared<Watcher>(launch, checks_bounds_, watches_numbers_);
  const Node node{.name = name, .operands = {}, .kernel = watcher};
  Item item{.name = name,
            .stream = &stream,
            .function = running != nullptr ? running->host_function() : 0,
            .operands = {},
            .context = context()};
  if (const core::Graph* graph = stream.graph()) {
    item.is_listed = false;  // until it is replayed
    add(graph, std::move(item), node);
  } else {
    submit(std::move(item), {&node, 1});
  }
  return watcher;
}

void Sanitizer::submit(Item item, std::span<const Node> nodes) {
  const std::shared_ptr<Log::Entry> place = log_.reserve();
  await(std::move(item), nodes,
        [this, place](Item complete, std::vector<KernelFinding> found, const std::vector<std::string>& unfollowed) {
          for (const std::string& name : unfollowed) count_unlisted(name);
          log_.fill(*place, [this, complete = std::move(complete), found = std::move(found)]() mutable {
            keep(detector_.submit(std::move(complete), std::move(found)));
          });
        });
}

void Sanitizer::records(const core::Event& event, const core::Stream& stream) {
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) {
    log_.add([this, handle = event.handle(), &stream] { detector_.record(handle, &stream); });
    return;
  }
  log_.add([this, handle = event.handle()] { detector_.forget(handle); });
  if (const auto of = captured(graph)) of->order.record(event.handle(), &stream);
}

void Sanitizer::waits(const core::Stream& stream, const core::Event& event) {
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) {
    log_.add([this, handle = event.handle(), &stream] { detector_.wait(&stream, handle); });
  } else if (const auto of = captured(graph)) {
    of->order.wait(&stream, event.handle());
  }
}

thread_local int Sanitizer::OwnWait::count = 0;

void Sanitizer::host_waited(const core::Stream& stream) {
  if (OwnWait::is_under_way()) return;
  log_.add([this, &stream] { detector_.host_waits_for_stream(&stream); });
}

void Sanitizer::host_waited(const core::Event& event) {
  log_.add([this, handle = event.handle()] { detector_.host_waits_for_event(handle); });
}

void Sanitizer::destroys(const core::Event& event) noexcept {
  log_.add([this, handle = event.handle()] { detector_.forget(handle); });
}

void Sanitizer::captures(const core::Graph& graph) {
  const auto of = std::make_shared<Captured>();
  const std::lock_guard lock(mutex_);
  of->order.restart(checks_);
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
  Item item{.name = "graph", .stream = &stream, .operands = {}, .context = context()};
  std::vector<Node> nodes;
  if (const auto of = captured(&graph)) {
    const std::lock_guard lock(mutex_);
    nodes = of->nodes;
  } else {
    item.is_listed = false;  // captured before anybody looked
    count_unlisted(item.name);
  }
  submit(std::move(item), nodes);
}

// The memory of a graph is free for its later nodes, but stays in use for everybody else.
void Sanitizer::allocated(uint64_t address, uint64_t size, bool is_private) {
  const bool is_seen = !core::RunningWork::on_this_thread();  // what running work writes first is not
  const Context where = is_seen ? context() : nullptr;
  const SiteOf site_of = is_seen && !is_private ? site_of_.load(std::memory_order_relaxed) : nullptr;
  const uint64_t site = site_of != nullptr ? site_of() : 0;
  log_.add([this, address, size, is_private, is_written = !is_seen || is_private, where, site] {
    detector_.allocate(address, size, is_private, is_written, where, site);
  });
  if (!is_private) return;
  for (const auto& of : capturing()) of->order.allocate(address, size, /*is_private=*/false, !is_seen, where);
}

void Sanitizer::freed(uint64_t address) noexcept {
  const Context where = core::RunningWork::on_this_thread() ? nullptr : context();
  log_.add([this, address, where] { detector_.free(address, where); });
  for (const auto& of : capturing()) of->order.free(address, where);
}

void Sanitizer::touches(const char* name, List list, const void* work) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return;
  OperandsOf listed;
  list(work, listed);
  Item item{.name = name,
            .stream = running != nullptr ? &running->stream() : nullptr,
            .function = running != nullptr ? running->host_function() : 0,
            .operands = std::move(listed.operands),
            .context = context()};
  log_.add([this, item = std::move(item)]() mutable { keep(detector_.submit(std::move(item))); });
}

uint64_t Sanitizer::submits_host_function(const core::Stream& stream) {
  const uint64_t number = ++num_host_functions_;
  log_.add([this, number, &stream] { detector_.begin_function(number, &stream); });
  return number;
}

void Sanitizer::ended_host_function(uint64_t number) noexcept {
  log_.add([this, number] { detector_.end_function(number); });
}

}  // namespace torch_mtia::sanitizer
