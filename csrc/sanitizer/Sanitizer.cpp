#include "Sanitizer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "../core/Driver.h"
#include "../core/Event.h"
#include "../core/Stream.h"
#include "../core/Waits.h"
#include "../runtime/forks.h"
#include "../runtime/loader.h"
#include "Numbers.h"

namespace torch_mtia::sanitizer {
namespace {

constexpr std::chrono::seconds kLongestWait{60};
constexpr size_t kMaxFindings = 4096;  // before those that are alike become one

class OperandsOf final : public core::OperandSink {
 public:
  void add(const core::Operand& each) override { operands.push_back(named(each)); }
  void add_host(const core::Operand& each) override {
    if (each.is_shared) operands.push_back(named(each));
  }

  std::vector<Operand> operands;
};

// For what destructors call.
template <typename Body>
void note(Body body) noexcept {
  try {
    body();
  } catch (...) {
    // The host is out of memory. What was not noted may cause a false report, or hide one.
  }
}

// The order in which an item accesses its operands: it reads before it writes.
int rank(const Operand& operand) {
  if (!operand.writes) return 0;
  return operand.old_bytes == OldBytes::kRead || operand.old_bytes == OldBytes::kReadInPart ? 1 : 2;
}

}  // namespace

Sanitizer::Sanitizer() {
  log_.hold_at_forks(runtime::ForkOrder::kObserver);
  runtime::hold_at_forks(runtime::ForkOrder::kObserved, mutex_);
  runtime::in_forked_children([] { get().leave_forked_child(); });
}

// The child of a process that uses the device can only free what it has inherited. So it is not observed, and the locks
// of captures and watchers need not be held at forks.
void Sanitizer::leave_forked_child() noexcept {
  if (!runtime::is_forked() && !runtime::is_initialized()) return;
  core::hooks.observer = nullptr;
  log_.abandon();
}

Sanitizer& Sanitizer::get() {
  static Sanitizer& instance = *std::unique_ptr<Sanitizer>(new Sanitizer()).release();  // leaked, see the class
  return instance;
}

void Sanitizer::start(Checks checks, bool numbers, const Program& program) {
  Sanitizer& instance = get();
  instance.watches_numbers_ = numbers;
  instance.program_ = &program;
  instance.finds_leaks_ = checks.freed;
  instance.checks_bounds_ = checks.bounds;
  instance.log_.clear();
  instance.log_.locked([&] { instance.detector_ = Detector(checks); });
  instance.num_forgotten_ = 0;
  {
    const std::lock_guard lock(instance.mutex_);
    instance.checks_ = checks;
    instance.graphs_.clear();
    instance.unlisted_.clear();
    instance.merge_at_ = std::max(kMaxFindings, 2 * instance.findings_.size());
  }
  core::hooks.observer = &instance;
}

void Sanitizer::stop() {
  core::hooks.observer = nullptr;
  get().log_.clear();
  get().watches_numbers_ = false;
  get().num_forgotten_ = num_forgotten();
  get().log_.locked([] { get().detector_ = Detector(); });
}

void Sanitizer::wait() {
  get().log_.wait(kLongestWait);
}

std::vector<Finding> Sanitizer::take() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  instance.num_findings_ = 0;
  return std::exchange(instance.findings_, {});
}

std::vector<LiveSite> Sanitizer::live_blocks() {
  wait();
  return get().log_.locked([] { return get().detector_.live_blocks(); });
}

std::map<std::string, uint64_t> Sanitizer::unlisted() {
  Sanitizer& instance = get();
  const std::lock_guard lock(instance.mutex_);
  return instance.unlisted_;
}

uint64_t Sanitizer::num_forgotten() {
  return get().log_.locked([] { return get().num_forgotten_ + get().detector_.num_forgotten(); });
}

void Sanitizer::count_unlisted(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++unlisted_[name];
}

void Sanitizer::keep(std::vector<Finding> found) {
  if (found.empty()) return;
  const std::lock_guard lock(mutex_);
  for (Finding& each : found) findings_.push_back(std::move(each));
  num_findings_ = findings_.size();
}

// Keeps a loop that repeats a fault from filling the memory. No lock of the sanitizer may be held: Program::merge may
// run code of the program.
void Sanitizer::merge_findings() {
  std::vector<Finding> merged = program_.load(std::memory_order_relaxed)->merge(take());
  const std::lock_guard lock(mutex_);
  std::move(findings_.begin(), findings_.end(), std::back_inserter(merged));
  findings_ = std::move(merged);
  num_findings_ = findings_.size();
  merge_at_ = std::max(kMaxFindings, 2 * findings_.size());
}

std::optional<Item> Sanitizer::begin_item(const char* name, const core::Stream* stream) {
  const core::RunningWork* running = core::RunningWork::current();
  if (running != nullptr && running->host_function() == 0) return std::nullopt;
  if (num_findings_.load(std::memory_order_relaxed) >= merge_at_.load(std::memory_order_relaxed)) merge_findings();
  return Item{.name = name,
              .stream = stream == nullptr && running != nullptr ? &running->stream() : stream,
              .function = running != nullptr ? running->host_function() : 0,
              .operands = {},
              .context = context()};
}

void Sanitizer::add(Item item) {
  log_.add([this, item = std::move(item)]() mutable { keep(detector_.submit(std::move(item))); });
}

std::shared_ptr<Capture> Sanitizer::captured(const core::Graph* graph) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  return found != graphs_.end() ? found->second : nullptr;
}

std::vector<std::shared_ptr<Capture>> Sanitizer::capturing() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Capture>> all;
  for (const auto& [graph, capture] : graphs_) {
    if (capture->is_under_way()) all.push_back(capture);
  }
  return all;
}

void Sanitizer::submit(const core::Stream& stream, Node node) {
  if (const core::Graph* graph = stream.graph()) {
    const std::shared_ptr<Capture> capture = captured(graph);
    if (capture == nullptr) return;
    node.item.function = 0;  // it runs in replays
    const auto num_blocks = std::make_shared<uint64_t>(0);
    log_.add([this, num_blocks] { *num_blocks = detector_.num_blocks(); });
    node.num_blocks = num_blocks;
    capture->add(std::move(node));
  } else if (node.kernel == nullptr) {
    add(std::move(node.item));
  } else {
    submit({std::move(node)}, [this](std::vector<Node> done) {
      keep(detector_.submit(std::move(done.front().item), std::move(done.front().found)));
    });
  }
}

std::vector<Finding> Sanitizer::check(Capture& capture, std::vector<Node>& nodes) {
  Detector order([this] {
    const std::lock_guard lock(mutex_);
    return checks_;
  }());
  std::vector<Finding> found = capture.check(nodes, order);
  num_forgotten_ += order.num_forgotten();
  return found;
}

std::shared_ptr<core::RunObserver> Sanitizer::submits(const core::Stream& stream, const char* name, List list,
                                                      const void* work) {
  if (name == nullptr) name = "work";
  std::optional<Item> item = begin_item(name, &stream);
  if (!item) return nullptr;
  item->is_listed = list != nullptr;
  item->is_collective = item->name.starts_with("c10d::");
  if (!item->is_listed) count_unlisted(name);
  std::shared_ptr<core::RunObserver> observer;
  if (watches_numbers_ && item->is_listed && !item->is_collective &&
      core::driver_info().can(MTIA_CAPABILITY_HOST_VIEW)) {
    observer = std::make_shared<NumbersObserver>(
        *item, [] { return get().watches_numbers_.load(std::memory_order_relaxed); },
        [](Finding finding) { get().keep({std::move(finding)}); });
  }
  OperandsOf listed;
  if (item->is_listed) list(work, listed);
  std::stable_sort(listed.operands.begin(), listed.operands.end(),
                   [](const Operand& a, const Operand& b) { return rank(a) < rank(b); });
  item->operands = std::move(listed.operands);
  item->copies = (item->name == "copy" || item->name == "aten::copy_") && item->operands.size() == 2 &&
                 !item->operands[0].writes && item->operands[0].old_bytes == OldBytes::kPassedThrough;
  item->copies_bytes = item->copies && item->name == "copy" &&
                       item->operands[0].region.range().size() == item->operands[1].region.range().size();
  submit(stream, {.item = std::move(*item)});
  return observer;
}

std::shared_ptr<core::KernelWatcher> Sanitizer::submits(const core::Stream& stream, const char* name,
                                                        const mtia_kernel_launch& launch) {
  if (std::any_of(launch.grid, launch.grid + 3, [](int32_t size) { return size <= 0; })) return nullptr;
  std::optional<Item> item = begin_item(name, &stream);
  if (!item) return nullptr;
  item->is_listed = false;  // until it has run
  const auto watcher = std::make_shared<Watcher>(launch, checks_bounds_, watches_numbers_);
  submit(stream, {.item = std::move(*item), .kernel = watcher});
  return watcher;
}

void Sanitizer::submit(std::vector<Node> nodes, Log::Apply apply) {
  log_.add(std::move(nodes), [this, apply = std::move(apply)](std::vector<Node> done) {
    for (const Node& each : done) {
      if (each.kernel != nullptr && !each.item.is_listed) count_unlisted(each.item.name);
    }
    apply(std::move(done));
  });
}

template <typename Step>
void Sanitizer::apply(Step step) {
  log_.add([this, step = std::move(step)] { step(detector_); });
}

template <typename Step>
void Sanitizer::apply(const core::Stream& stream, Step step) {
  const core::Graph* graph = stream.graph();
  if (graph == nullptr) return apply(std::move(step));
  if (const auto capture = captured(graph)) capture->add(std::move(step));
}

void Sanitizer::records(const core::Event& event, const core::Stream& stream) {
  if (stream.graph() != nullptr) apply([handle = event.handle()](Detector& order) { order.clocks().forget(handle); });
  apply(stream, [handle = event.handle(), &stream](Detector& order) { order.clocks().record(handle, &stream); });
}

void Sanitizer::waits(const core::Stream& stream, const core::Event& event) {
  apply(stream, [handle = event.handle(), &stream](Detector& order) { order.clocks().wait(&stream, handle); });
}

void Sanitizer::host_waited(const core::Stream& stream) {
  apply([&stream](Detector& order) { order.clocks().host_waits_for_stream(&stream); });
}

void Sanitizer::host_waited(const core::Event& event) {
  apply([handle = event.handle()](Detector& order) { order.clocks().wait(/*stream=*/nullptr, handle); });
}

void Sanitizer::destroys(const core::Event& event) noexcept {
  note([&] { apply([handle = event.handle()](Detector& order) { order.clocks().forget(handle); }); });
}

void Sanitizer::captures(const core::Graph& graph) {
  const auto capture = std::make_shared<Capture>();
  const std::lock_guard lock(mutex_);
  graphs_[&graph] = capture;
}

void Sanitizer::has_captured(const core::Graph& graph) noexcept {
  const std::shared_ptr<Capture> capture = captured(&graph);
  if (capture == nullptr) return;
  capture->end();
  note([&] {
    std::vector<Node> nodes = capture->nodes();
    keep(check(*capture, nodes));
  });
}

void Sanitizer::destroys(const core::Graph& graph) noexcept {
  const std::lock_guard lock(mutex_);
  graphs_.erase(&graph);
}

void Sanitizer::launches(const core::Graph& graph, const core::Stream& stream) {
  std::optional<Item> item = begin_item("graph", &stream);
  if (!item) return;
  const std::shared_ptr<Capture> capture = captured(&graph);
  if (capture == nullptr) {
    item->is_listed = false;  // captured before the start
    count_unlisted(item->name);
    return add(std::move(*item));
  }
  std::vector<Node> nodes = capture->nodes();
  const bool has_kernels = std::any_of(nodes.begin(), nodes.end(), [](const Node& each) { return each.kernel; });
  submit(std::move(nodes), [this, capture, has_kernels, replay = std::move(*item)](std::vector<Node> done) {
    Item merged = merge(replay, done);
    std::vector<Finding> found = has_kernels ? check(*capture, done) : std::vector<Finding>();
    for (Finding& each : found) detector_.locate(each);
    keep(std::move(found));
    keep(detector_.submit(std::move(merged)));
  });
}

// Private memory of a graph is free for its later nodes, but stays in use for all other work.
void Sanitizer::allocated(uint64_t address, uint64_t size, bool is_private) {
  const bool is_seen = !core::RunningWork::on_this_thread();  // the first writes of running work are not seen
  const Context where = is_seen ? context() : nullptr;
  const bool has_site = is_seen && !is_private && finds_leaks_.load(std::memory_order_relaxed);
  const uint64_t site = has_site ? program_.load(std::memory_order_relaxed)->site() : 0;
  apply([address, size, is_private, is_written = !is_seen || is_private, where, site](Detector& order) {
    order.allocate(address, size, is_private, is_written, where, site);
  });
  if (!is_private) return;
  for (const auto& capture : capturing()) {
    capture->add([address, size, is_seen, where](Detector& order) {
      order.allocate(address, size, /*is_private=*/false, /*is_written=*/!is_seen, where);
    });
  }
}

void Sanitizer::freed(uint64_t address) noexcept {
  Context where = nullptr;
  if (!core::RunningWork::on_this_thread()) note([&] { where = context(); });
  note([&] {
    const auto step = [address, where](Detector& order) { order.free(address, where); };
    apply(step);
    for (const auto& capture : capturing()) capture->add(step);
  });
}

void Sanitizer::reuse_waits_for(const core::Stream& stream, uint64_t address, uint64_t size) noexcept {
  note([&] { apply([&stream, address, size](Detector& order) { order.reuse_waits_for(&stream, address, size); }); });
}

void Sanitizer::touches(const char* name, List list, const void* work) {
  std::optional<Item> item = begin_item(name, nullptr);
  if (!item) return;
  OperandsOf listed;
  list(work, listed);
  item->operands = std::move(listed.operands);
  add(std::move(*item));
}

uint64_t Sanitizer::submits_host_function(const core::Stream& stream) {
  const uint64_t number = ++num_host_functions_;
  apply([number, &stream](Detector& order) { order.begin_function(number, &stream); });
  return number;
}

void Sanitizer::ended_host_function(uint64_t number) noexcept {
  note([&] { apply([number](Detector& order) { order.end_function(number); }); });
}

}  // namespace torch_mtia::sanitizer
