#include "MTIAGraph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <utility>

#include "../core/Driver.h"
#include "../runtime/forks.h"
#include "DeviceType.h"
#include "MTIACachingAllocator.h"
#include "MTIAGenerator.h"
#include "MTIAHostAllocator.h"

namespace torch_mtia {
namespace {

constexpr const char* kWaits =
    "a capture runs nothing that could be waited for. Call it before the capture or after a replay";

c10::MempoolId_t new_own_pool() {
  static std::atomic<uint64_t> last{0};
  return {++last, 0};
}

// Captures that forbid every thread to wait.
std::atomic<int> global_captures{0};

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string stream_name(const core::Stream& stream) {
  const c10::Stream public_stream = MTIAStream::of(stream).unwrap();
  return c10::str(device_name(public_stream.device_index()), " stream ", public_stream.id());
}

// The last item of a replay with host functions closes the replay's window. Touches no memory.
struct EndOfReplay {
  std::shared_ptr<const MTIACachingAllocator::Window> window;

  void operator()(const mtia_work_context& /*context*/) const {}
  void list_operands(core::OperandSink& /*sink*/) const {}
};

}  // namespace

constinit std::atomic<size_t> MTIAGraph::num_captured{0};

MTIAGraph::~MTIAGraph() {
  reset();
}

MTIAGraph::Memory::~Memory() {
  if (runtime::is_forked()) return;  // the pools are upstream's too, whose mutexes a fork does not hold
  try {
    for (const c10::DeviceIndex device : devices) MTIACachingAllocator::of(device).release_pool(pool);
    if (host_pool != c10::MempoolId_t{0, 0}) host_allocator().release_pool(host_pool);
  } catch (...) {
    // The pool is leaked: a destructor can raise no error.
  }
  --num_captured;
}

c10::MempoolId_t MTIAGraph::new_pool_handle() {
  static std::atomic<uint64_t> last{0};
  return {0, ++last};
}

void MTIAGraph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(memory_ == nullptr,
              "this graph has been captured already: call reset() before another capture, or make "
              "another graph");
  ensure_initialized();
  TORCH_CHECK_NOT_IMPLEMENTED(is_supported(), "the driver '", core::driver_info().name,
                              "' has no graphs (MTIA_CAPABILITY_GRAPHS)");
  device_ = current_device();
  const MTIAStream stream = MTIAStream::current(device_);
  refuse(stream, "capture_begin()", "the current stream is being captured in another graph already. End that first");
  memory_ = std::make_shared<Memory>(pool == c10::MempoolId_t{0, 0} ? new_own_pool() : pool);
  mode_ = mode;
  handled_at_begin_ = core::hooks.handled_exception != nullptr ? core::hooks.handled_exception(nullptr) : nullptr;
  takes_host_pool_ = true;
  if (mode_ == at::GraphCaptureMode::Global) ++global_captures;
  try {
    begin_capture(stream.core());
  } catch (...) {
    leave_capture_mode();
    reset();
    throw;
  }
}

void MTIAGraph::leave_capture_mode() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    takes_host_pool_ = false;
    if (memory_->host_pool != c10::MempoolId_t{0, 0}) host_allocator().end_allocate_to_pool(memory_->host_pool);
  }
  if (mode_ == at::GraphCaptureMode::Global) --global_captures;
}

void MTIAGraph::use_host_pool() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!takes_host_pool_) return;
  const c10::MempoolId_t pool = new_own_pool();
  host_allocator().begin_allocate_to_pool(pool, [this](c10::Stream s) { return of(MTIAStream(s)) == this; });
  memory_->host_pool = pool;
  takes_host_pool_ = false;
}

void MTIAGraph::stream_joined(core::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto device = static_cast<c10::DeviceIndex>(stream.device());
  core::BlockAllocator& allocator = MTIACachingAllocator::of(device);
  std::vector<c10::DeviceIndex>& devices = memory_->devices;
  if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
    devices.reserve(devices.size() + 1);  // a pool that is used is in the list, whatever fails
    allocator.use_pool(memory_->pool);
    devices.push_back(device);
  }
  allocator.direct_to_pool(&stream, memory_->pool);
}

void MTIAGraph::stream_left(core::Stream& stream) noexcept {
  MTIACachingAllocator::of(static_cast<c10::DeviceIndex>(stream.device())).direct_to_default_pool(&stream);
}

void MTIAGraph::capture_end() {
  TORCH_CHECK(is_capturing(), "capture_end() was called without capture_begin() before it");
  if (core::hooks.handled_exception != nullptr) {
    std::string text;
    const void* exception = core::hooks.handled_exception(&text);
    if (exception != nullptr && exception != handled_at_begin_) {
      invalidate(c10::str("an exception ended the capture before its time: ", text));
    }
  }
  leave_capture_mode();
  end_capture();
  memory_->states->resize(memory_->draws.size());
  if (!invalid_reason().empty()) return forget_nodes();
  if (keep_graph_) return;
  core::Graph::instantiate();
  if (!keeps_nodes_for_display_) forget_nodes();
}

void MTIAGraph::check_captured(const char* function) const {
  TORCH_CHECK(memory_ != nullptr && !is_capturing(), function, " was called without a finished capture before it");
  const std::string reason = invalid_reason();
  TORCH_CHECK(reason.empty(), function, ": the graph is incomplete: ", reason);
}

void MTIAGraph::instantiate() {
  check_captured("instantiate()");
  TORCH_CHECK(has_nodes(),
              "instantiate() is for graphs made with keep_graph=True; this one was instantiated by "
              "capture_end()");
  core::Graph::instantiate();
}

void MTIAGraph::replay() {
  check_captured("replay()");
  if (!is_instantiated()) instantiate();
  const MTIAStream stream = MTIAStream::current(device_);
  refuse(stream, "replay()", "a graph cannot contain the replay of another one. Capture the work itself");
  if (std::find(launched_in_.begin(), launched_in_.end(), &stream.core()) == launched_in_.end()) {
    for (const c10::DeviceIndex device : memory_->devices) {
      MTIACachingAllocator::of(device).use_pool_in(memory_->pool, &stream.core());
    }
    launched_in_.push_back(&stream.core());
  }
  PhiloxStates states;
  for (const Draws& draws : memory_->draws) states.push_back(torch_mtia::reserve(draws.generator, draws.words));
  const mtia_graph_parameters parameters{memory_->states->data(), states.data(), states.size() * sizeof(PhiloxState)};
  const core::WithoutGil without_gil;  // a replay in another stream may be in a Python function
  std::shared_ptr<const MTIACachingAllocator::Window> window;
  if (has_host_functions_) window = std::make_shared<const MTIACachingAllocator::Window>(stream.core());
  launch(stream.core(), states.empty() ? nullptr : &parameters);
  if (window != nullptr) {  // an item after the graph closes it
    core::WorkInfo info{};
    info.name = "mtia::graph_end";
    stream.core().launch(info, EndOfReplay{std::move(window)});
  }
}

void MTIAGraph::reset() noexcept {
  if (memory_ == nullptr || runtime::is_forked()) return;  // see Note [Forks] in runtime/forks.h
  if (is_capturing()) {
    try {
      leave_capture_mode();
    } catch (const std::exception&) {
      // Pinned memory goes on to come from the pool, as the allocator says that it does not.
    }
  }
  destroy(std::move(memory_));
  has_host_functions_ = false;
  launched_in_.clear();
}

c10::MempoolId_t MTIAGraph::pool() const {
  TORCH_CHECK(memory_ != nullptr, "pool() was called without capture_begin() before it");
  return memory_->pool;
}

void MTIAGraph::debug_dump(const std::string& path) {
  check_captured("debug_dump()");
  TORCH_CHECK(has_nodes(), "debug_dump() needs enable_debug_mode() before the capture");
  std::ofstream file(path);
  file << "digraph mtia_graph {\n  node [shape=box];\n";
  const std::vector<core::GraphNode> nodes = this->nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    file << "  n" << i << " [label=\"" << escape(nodes[i].name) << "\\n" << stream_name(*nodes[i].stream) << "\"];\n";
    for (const uint32_t dependency : nodes[i].dependencies) file << "  n" << dependency << " -> n" << i << ";\n";
  }
  file << "}\n";
  file.close();
  TORCH_CHECK(!file.fail(), "debug_dump() cannot write to '", path, "'");
}

void MTIAGraph::refuse_captured(const MTIAStream& stream, std::string_view what, const char* reason) {
  const std::string message = c10::str(what, " cannot be captured in a graph: ", reason, ".");
  with_capture_of(stream.core(), [&](core::Graph& graph) { graph.invalidate(message); });
  TORCH_CHECK(false, message);
}

void MTIAGraph::refuse_on_devices(const char* what) {
  if (C10_LIKELY(!any_capture())) return;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    const MTIAStream stream = MTIAStream::current(device);
    bool is_forbidden = false;
    with_capture_of(stream.core(), [&](core::Graph& graph) {
      is_forbidden = static_cast<MTIAGraph&>(graph).mode_ != at::GraphCaptureMode::Relaxed;
    });
    if (is_forbidden) refuse_captured(stream, what, kWaits);
  }
  TORCH_CHECK(global_captures.load() == 0, what, " is forbidden while a graph is captured in global mode: ", kWaits,
              ".");
}

PhiloxSource MTIAGraph::reserve_words(const at::Generator& generator, uint64_t words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Draws>& all = memory_->draws;
  auto draws = std::find_if(all.begin(), all.end(), [&](const Draws& known) { return known.generator == generator; });
  if (draws == all.end()) draws = all.insert(all.end(), {generator, 0});
  const auto index = static_cast<size_t>(draws - all.begin());
  return {memory_->states, index, std::exchange(draws->words, draws->words + MTIAGeneratorImpl::round_up(words))};
}

}  // namespace torch_mtia

namespace at {
namespace {
const torch_mtia::DeviceTypeRegistration graph_registration([](const torch_mtia::RegisteredType& registered,
                                                               bool active) {
  std::string key = registered.name;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::toupper(c); });
  // A registry keeps what it was given; a graph of a type that is no longer registered cannot be captured.
  if (!active || at::GraphImplRegistry()->Has(key)) return;
  at::GraphImplRegistry()->Register(key, [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
    return std::make_unique<torch_mtia::MTIAGraph>(args);
  });
});
}  // namespace
}  // namespace at
