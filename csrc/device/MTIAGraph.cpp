#include "MTIAGraph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <utility>

#include "../core/DriverInfo.h"
#include "../runtime/forks.h"
#include "Door.h"
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

// The window of a replay with functions of the host closes behind it. Touches no memory.
struct EndOfReplay {
  std::shared_ptr<const MTIACachingAllocator::Window> window;

  void operator()(const mtia_work_context& /*context*/) const {}
  void list_operands(core::OperandSink& /*sink*/) const {}
};

}  // namespace

MTIAGraph::~MTIAGraph() {
  reset();
}

c10::MempoolId_t MTIAGraph::new_pool_handle() {
  static std::atomic<uint64_t> last{0};
  return {0, ++last};
}

void MTIAGraph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(!is_captured_,
              "this graph has been captured already: call reset() before another capture, or make "
              "another graph");
  ensure_initialized();
  TORCH_CHECK_NOT_IMPLEMENTED(is_supported(), "the driver '", core::driver_info().name,
                              "' has no graphs (MTIA_CAPABILITY_GRAPHS)");
  device_ = current_device();
  const MTIAStream stream = MTIAStream::current(device_);
  TORCH_CHECK(of(stream) == nullptr, "the current stream is being captured in another graph already");
  pool_ = pool == c10::MempoolId_t{0, 0} ? new_own_pool() : pool;
  mode_ = mode;
  states_ = std::make_shared<PhiloxStates>();
  is_captured_ = true;
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
    if (host_pool_ != c10::MempoolId_t{0, 0}) host_allocator().end_allocate_to_pool(host_pool_);
  }
  if (mode_ == at::GraphCaptureMode::Global) --global_captures;
}

void MTIAGraph::use_host_pool() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!takes_host_pool_) return;
  const c10::MempoolId_t pool = new_own_pool();
  host_allocator().begin_allocate_to_pool(pool, [this](c10::Stream s) { return of(MTIAStream(s)) == this; });
  host_pool_ = pool;
  takes_host_pool_ = false;
}

void MTIAGraph::stream_joined(core::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto device = static_cast<c10::DeviceIndex>(stream.device());
  core::BlockAllocator& allocator = MTIACachingAllocator::of(device);
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
    allocator.use_pool(pool_);
  }
  allocator.direct_to_pool(&stream, pool_);
}

void MTIAGraph::stream_left(core::Stream& stream) noexcept {
  MTIACachingAllocator::of(static_cast<c10::DeviceIndex>(stream.device())).direct_to_default_pool(&stream);
}

void MTIAGraph::capture_end() {
  TORCH_CHECK(is_capturing(), "capture_end() was called without capture_begin() before it");
  leave_capture_mode();
  end_capture();
  states_->resize(draws_.size());
  if (!invalid_reason().empty()) return forget_nodes();
  if (keep_graph_) return;
  core::Graph::instantiate();
  if (!keeps_nodes_for_display_) forget_nodes();
}

void MTIAGraph::check_captured(const char* function) const {
  TORCH_CHECK(is_captured_ && !is_capturing(), function, " was called without a finished capture before it");
  const std::string reason = invalid_reason();
  TORCH_CHECK(reason.empty(), function, ": the graph lacks what its capture refused: ", reason);
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
    for (const c10::DeviceIndex device : devices_) {
      MTIACachingAllocator::of(device).use_pool_in(pool_, &stream.core());
    }
    launched_in_.push_back(&stream.core());
  }
  PhiloxStates states;
  for (const Draws& draws : draws_) states.push_back(torch_mtia::reserve(draws.generator, draws.words));
  const mtia_graph_parameters parameters{states_->data(), states.data(), states.size() * sizeof(PhiloxState)};
  const core::WithoutGil without_gil;  // a replay in another stream may be in a Python function
  std::shared_ptr<const MTIACachingAllocator::Window> window;
  if (has_host_functions_) window = std::make_shared<const MTIACachingAllocator::Window>(stream.core());
  launch(stream.core(), states.empty() ? nullptr : &parameters);
  if (window != nullptr) {  // it ends with an item behind the graph
    core::WorkInfo info{};
    info.name = "mtia::graph_end";
    stream.core().launch(info, EndOfReplay{std::move(window)});
  }
}

void MTIAGraph::reset() noexcept {
  if (!is_captured_ || runtime::is_forked()) return;  // see Note [Forks] in runtime/forks.h
  if (is_capturing()) leave_capture_mode();
  destroy();
  for (const c10::DeviceIndex device : devices_) MTIACachingAllocator::of(device).release_pool(pool_);
  if (host_pool_ != c10::MempoolId_t{0, 0}) host_allocator().release_pool(std::exchange(host_pool_, {0, 0}));
  has_host_functions_ = false;
  devices_.clear();
  launched_in_.clear();
  draws_.clear();
  states_.reset();
  is_captured_ = false;
}

c10::MempoolId_t MTIAGraph::pool() const {
  TORCH_CHECK(is_captured_, "pool() was called without capture_begin() before it");
  return pool_;
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

void MTIAGraph::refuse(std::string_view what, const char* reason) {
  const std::string message = c10::str(what, " cannot be captured in a graph: ", reason, ".");
  invalidate(message);
  TORCH_CHECK(false, message);
}

void MTIAGraph::refuse_on_devices(const char* what) {
  if (C10_LIKELY(!any_capture())) return;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    MTIAGraph* graph = of(MTIAStream::current(device));
    if (graph != nullptr && graph->mode_ != at::GraphCaptureMode::Relaxed) graph->refuse(what, kWaits);
  }
  TORCH_CHECK(global_captures.load() == 0, what, " is forbidden while a graph is captured in global mode: ", kWaits,
              ".");
}

PhiloxSource MTIAGraph::reserve_words(const at::Generator& generator, uint64_t words) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto draws =
      std::find_if(draws_.begin(), draws_.end(), [&](const Draws& known) { return known.generator == generator; });
  if (draws == draws_.end()) draws = draws_.insert(draws_.end(), {generator, 0});
  const auto index = static_cast<size_t>(draws - draws_.begin());
  return {states_, index, std::exchange(draws->words, draws->words + MTIAGeneratorImpl::round_up(words))};
}

}  // namespace torch_mtia

namespace at {
namespace {
const torch_mtia::DoorPart registered([](const torch_mtia::Door& door, bool open) {
  std::string key = door.name;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::toupper(c); });
  // A registry keeps what it was given; a graph of a closed door's device cannot be captured.
  if (!open || at::GraphImplRegistry()->Has(key)) return;
  at::GraphImplRegistry()->Register(key, [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
    return std::make_unique<torch_mtia::MTIAGraph>(args);
  });
});
}  // namespace
}  // namespace at
