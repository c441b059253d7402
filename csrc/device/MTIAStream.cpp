#include "MTIAStream.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "../core/Event.h"
#include "../core/Hooks.h"
#include "../core/Waits.h"
#include "../core/WorkItem.h"
#include "../runtime/forks.h"
#include "MTIACachingAllocator.h"
#include "MTIAGraph.h"

namespace torch_mtia {
namespace {

constexpr const char* kNoTime =
    "work that is captured does not run. Call it before the capture, on another stream, or after a replay";

[[noreturn]] void raise(const core::Stream& stream, const core::WorkError& error) {
  const char* const remedy =
      runtime::launch_blocking()
          ? ""
          : " (reported at a synchronizing call; TORCH_MTIA_LAUNCH_BLOCKING=1 reports it where it is issued)";
  const std::string context = c10::str("while ", error.operator_name, " ran on ",
                                       device_name(static_cast<c10::DeviceIndex>(stream.device())), remedy);
  if (error.exception == nullptr) TORCH_CHECK(false, error.message, "\n", context);
  try {
    std::rethrow_exception(error.exception);
  } catch (c10::Error& original) {
    original.add_context(context);
    throw;
  } catch (const std::exception& original) {
    TORCH_CHECK(false, original.what(), "\n", context);
  }
}

}  // namespace

constinit std::array<MTIAStream::DeviceStreams, kMaxDevices> MTIAStream::device_streams{};
constinit thread_local std::array<uint16_t, kMaxDevices> MTIAStream::current_ids{};

c10::StreamId MTIAStream::next_of(Pool pool, c10::DeviceIndex device) {
  check_device_index(device);
  const uint32_t turn = device_streams[device].next[pool].fetch_add(1, std::memory_order_relaxed);
  return 1 + pool * kStreamsPerPool + turn % kStreamsPerPool;
}

core::Stream* MTIAStream::create_core_stream(c10::DeviceIndex device, c10::StreamId id) {
  check_device_index(device);
  ensure_initialized();
  runtime::check_not_forked();  // as in ensure_initialized
  auto& all = device_streams[device];
  auto& slot = all.streams[id];
  std::lock_guard<std::mutex> lock(all.create_mutex);
  auto* stream = slot.load(std::memory_order_relaxed);
  if (stream == nullptr) {
    stream = core::Stream::create(device, is_high(id) ? -1 : 0);
    slot.store(stream, std::memory_order_release);
  }
  return stream;
}

void MTIAStream::initialize() {
  core::hooks.raise_error = &raise;
}

MTIAStream::MTIAStream(const c10::Stream& stream) : device_(stream.device_index()), id_(stream.id()) {
  TORCH_CHECK(stream.device_type() == device_type(), "expected a stream of type ", device_name(), ", got one of ",
              stream.device());
  check_device_index(device_);
  TORCH_CHECK(id_ >= 0 && id_ < device_streams[device_].num_ids(), device_name(device_), " has no stream with id ",
              id_);
  *this = MTIAStream(device_, id_);
}

MTIAStream MTIAStream::of(const core::Stream& core) {
  const auto device = static_cast<c10::DeviceIndex>(core.device());
  c10::StreamId id = 0;
  while (device_streams[device].streams[id].load(std::memory_order_acquire) != &core) ++id;
  return {device, id};
}

MTIAStream MTIAStream::default_stream(c10::DeviceIndex device) {
  check_device_index(device);
  return {device, 0};
}

MTIAStream MTIAStream::from_pool(c10::DeviceIndex device, int priority) {
  return {device, next_of(priority < 0 ? kHigh : kNormal, device)};
}

MTIAStream MTIAStream::for_recording(c10::DeviceIndex device) {
  return {device, next_of(kRecording, device)};
}

MTIAStream MTIAStream::acquire_owned(c10::DeviceIndex device) {
  check_device_index(device);
  auto& all = device_streams[device];
  for (int index = 0; index < kMaxOwned; ++index) {
    if (all.is_taken[index].exchange(true)) continue;
    const auto* const before = all.streams[kFirstOwned + index].load(std::memory_order_acquire);
    if (before != nullptr && !before->is_idle()) {
      all.is_taken[index] = false;
      continue;
    }
    int num_owned = all.num_owned;
    while (num_owned <= index && !all.num_owned.compare_exchange_weak(num_owned, index + 1)) {
    }
    try {
      return {device, kFirstOwned + index};
    } catch (...) {
      all.is_taken[index] = false;
      throw;
    }
  }
  TORCH_CHECK(false, "the process groups of this process use all ", kMaxOwned, " streams that ", device_name(device),
              " has for them: destroy groups that are not needed any more");
}

void MTIAStream::release_owned() const noexcept {
  device_streams[device_].is_taken[id_ - kFirstOwned] = false;
}

std::optional<MTIAStream> MTIAStream::find(c10::DeviceIndex device, const void* handle) {
  for (c10::StreamId id = 0; id < device_streams[device].num_ids(); ++id) {
    const auto* stream = device_streams[device].streams[id].load(std::memory_order_acquire);
    if (stream != nullptr && stream->handle() == handle) return MTIAStream(device, id);
  }
  return std::nullopt;
}

MTIAStream MTIAStream::make_current() const {
  const MTIAStream previous = current(device_);
  current_ids[device_] = static_cast<uint16_t>(id_);
  return previous;
}

bool MTIAStream::query() const {
  MTIAGraph::refuse(*this, "Stream.query()", kNoTime);
  return core::program_queries(*core_);
}

void MTIAStream::wait() const {
  MTIAGraph::refuse(*this, "Stream.synchronize()", kNoTime);
  core::program_waits_for(*core_);
}

void MTIAStream::synchronize() const {
  wait();
  core_->raise_error();
}

void MTIAStream::synchronize_all(c10::DeviceIndex device) {
  // Other streams may wait for the one that the thread is inside of.
  TORCH_CHECK(!core::RunningWork::on_this_thread(),
              "a host function cannot wait for the whole device, because it is part of what the device has to do. "
              "Synchronize the stream or the event that it needs");
  core::Stream* failed = nullptr;
  std::optional<core::WorkError> first;
  {
    const core::WithoutGil without_gil;
    for (c10::StreamId id = 0; id < device_streams[device].num_ids(); ++id) {
      auto* stream = device_streams[device].streams[id].load(std::memory_order_acquire);
      if (stream == nullptr || !stream->wait_unless_captured()) continue;  // what is captured does not run
      auto error = stream->take_error();
      if (!error || first) continue;
      first = std::move(error);
      failed = stream;
    }
  }
  if (first) raise(*failed, *first);
}

std::vector<MTIAStream> MTIAStream::others() const {
  std::vector<MTIAStream> found;
  for (c10::StreamId id = 0; id < device_streams[device_].num_ids(); ++id) {
    const auto* stream = device_streams[device_].streams[id].load(std::memory_order_acquire);
    if (stream != nullptr && !is_for_recordings(id) && stream != core_ && stream->graph() == nullptr)
      found.push_back(MTIAStream(device_, id));
  }
  return found;
}

std::vector<MTIAStream> MTIAStream::busy(c10::DeviceIndex device) {
  std::vector<MTIAStream> found;
  for (c10::StreamId id = 0; id < device_streams[device].num_ids(); ++id) {
    const auto* stream = device_streams[device].streams[id].load(std::memory_order_acquire);
    if (stream != nullptr && stream->graph() == nullptr && !stream->is_idle()) found.push_back(MTIAStream(device, id));
  }
  return found;
}

void MTIAStream::wait_for(const MTIAStream& other) const {
  core::Event event(/*enable_timing=*/false);
  event.record(other.core());
  core().wait(event);
}

void MTIAStream::wait_for_others() const {
  for (const MTIAStream& other : others()) {
    // For an observer the order does not depend on timing.
    if (core::current_observer() != nullptr || !other.core().is_idle()) wait_for(other);
  }
}

namespace {

// The number of the function for an observer, until the last copy of its item dies.
class Watched {
 public:
  explicit Watched(const MTIAStream& stream) {
    if (core::Observer* observer = core::current_observer()) number_ = observer->submits_host_function(stream.core());
  }
  ~Watched() {
    if (core::Observer* observer = number_ != 0 ? core::current_observer() : nullptr)
      observer->ended_host_function(number_);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  uint64_t number() const { return number_; }

 private:
  uint64_t number_ = 0;
};

}  // namespace

void launch_callback(const MTIAStream& stream, std::function<void()> function) {
  core::WorkInfo info{};
  info.name = "mtia::host_function";
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;  // not on the caller, whoever that is
  // Open until the last copy of the item dies. A graph's items live longer than they run: its replays open windows.
  std::shared_ptr<const MTIACachingAllocator::Window> window;
  std::shared_ptr<const Watched> watched;
  if (MTIAGraph* graph = MTIAGraph::of(stream)) {
    graph->note_host_function();
  } else {
    window = std::make_shared<const MTIACachingAllocator::Window>(stream.core());
    watched = std::make_shared<const Watched>(stream);
  }
  stream.core().launch(info, [function = std::move(function), window = std::move(window),
                              watched = std::move(watched)](const mtia_work_context& context) {
    const core::RunningWork running(*static_cast<core::Stream*>(context.stream_tag),
                                    watched != nullptr ? watched->number() : 0);
    function();
  });
}

}  // namespace torch_mtia
