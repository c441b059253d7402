#include "WorkTrace.h"

#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "../runtime/forks.h"
#include "../runtime/loader.h"
#include "Driver.h"
#include "SmallMutex.h"
#include "Stream.h"

namespace torch_mtia::core {
namespace {

int64_t epoch_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

struct Recording {
  bool active = false;
  uint64_t number = 0;    // of this recording
  uint64_t first_id = 1;  // of records.front(); the others follow without a gap
  std::deque<WorkRecord> records;
  WorkTrace::LaunchListener listener = nullptr;

  // Null: of an earlier recording.
  WorkRecord* find(uint64_t id) {
    return id >= first_id && id - first_id < records.size() ? &records[id - first_id] : nullptr;
  }
};

// The lock is held for a few instructions. Both are leaked: threads of the driver use them until the process ends.
SmallMutex& mutex() {
  static SmallMutex& instance = [&]() -> SmallMutex& {
    SmallMutex& made = *std::make_unique<SmallMutex>().release();
    runtime::hold_at_forks(runtime::ForkOrder::kTrace, made);
    return made;
  }();
  return instance;
}
Recording& recording() {
  static Recording& instance = *std::make_unique<Recording>().release();
  return instance;
}

// What a thread is doing, outermost first. A recording that ends in between leaves entries; they are dropped
// when the next one meets them.
struct Operations {
  uint64_t recording = 0;
  std::vector<uint64_t> ids;
};
thread_local Operations tls_operations;

int32_t thread_number() {
  thread_local const auto number = static_cast<int32_t>(gettid());
  return number;
}

uint64_t begin_record(const Stream& stream, const char* name) {
  const int64_t now = epoch_ns();
  std::string own_name(name);
  const std::lock_guard lock(mutex());
  Recording& current = recording();
  if (!current.active) return 0;
  const Operations& operations = tls_operations;
  const bool has_operation = operations.recording == current.number && !operations.ids.empty();
  const uint64_t id = current.first_id + current.records.size();
  current.records.push_back({.id = id,
                             .name = std::move(own_name),
                             .stream = &stream,
                             .operation = has_operation ? operations.ids.back() : 0,
                             .thread = thread_number(),
                             .submit_start_ns = now});
  return id;
}

uint64_t submitting(void* stream_tag, const mtia_work* work) {
  const auto& stream = *static_cast<const Stream*>(stream_tag);
  const char* name = work->name != nullptr ? work->name : "work";
  WorkTrace::LaunchListener listener = nullptr;
  {
    const std::lock_guard lock(mutex());
    listener = recording().listener;
  }
  if (listener != nullptr) listener(stream, name);
  try {
    return begin_record(stream, name);
  } catch (const std::bad_alloc&) {
    return 0;  // an item that is missing in the trace
  }
}

void submitted(uint64_t id) {
  const int64_t now = epoch_ns();
  const std::lock_guard lock(mutex());
  if (WorkRecord* record = recording().find(id)) record->submit_end_ns = now;
}

void ran(uint64_t id, int64_t start_ns, int64_t end_ns) {
  const std::lock_guard lock(mutex());
  if (WorkRecord* record = recording().find(id)) {
    record->start_ns = start_ns;
    record->end_ns = end_ns;
  }
}

constexpr mtia_tracer tracer{sizeof(mtia_tracer), &submitting, &submitted, &ran};

}  // namespace

bool WorkTrace::start() {
  {
    const std::lock_guard lock(mutex());
    Recording& current = recording();
    if (std::exchange(current.active, true)) return false;
    ++current.number;
  }
  attach();
  return true;
}

std::deque<WorkRecord> WorkTrace::stop() {
  std::deque<WorkRecord> records;
  {
    const std::lock_guard lock(mutex());
    Recording& current = recording();
    current.active = false;
    current.first_id += current.records.size();
    records.swap(current.records);
  }
  attach();
  return records;
}

void WorkTrace::push_operation(uint64_t id) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex());
    number = recording().number;
  }
  Operations& operations = tls_operations;
  if (std::exchange(operations.recording, number) != number) operations.ids.clear();
  operations.ids.push_back(id);
}

void WorkTrace::pop_operation() noexcept {
  if (!tls_operations.ids.empty()) tls_operations.ids.pop_back();
}

void WorkTrace::set_launch_listener(LaunchListener listener) {
  {
    const std::lock_guard lock(mutex());
    recording().listener = listener;
  }
  attach();
}

bool WorkTrace::is_supported() {
  return runtime::is_initialized() && driver_info().can(MTIA_CAPABILITY_TRACING);
}

void WorkTrace::attach() {
  if (!is_supported()) return;
  const std::lock_guard lock(mutex());
  const bool wanted = recording().active || recording().listener != nullptr;
  // Fails only in a child that was forked after its parent initialized the device: nothing runs there.
  runtime::driver().set_tracer(wanted ? &tracer : nullptr);
}

}  // namespace torch_mtia::core
