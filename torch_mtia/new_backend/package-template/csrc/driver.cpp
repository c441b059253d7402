// The driver of @NAME@: what mtia_runtime.h asks for, on memory of the host. Replace the bodies by calls of your
// hardware.
//
// This device is the simplest that keeps the contract: a stream is a thread that runs what was submitted, in order. It
// has a host view: ATen's CPU kernels run on its memory as they are. A driver without one leaves
// MTIA_CAPABILITY_HOST_VIEW out.
#include <torch_mtia/runtime/mtia_runtime.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace {

// Something that a stream runs.
struct Item {
  std::string name;
  std::function<mtia_status()> run;
};

// What an event stands for: a point in a stream's work.
struct Record {
  std::mutex mutex;
  std::condition_variable reached;
  bool is_reached = false;
  std::chrono::steady_clock::time_point time;

  void reach() {
    const std::lock_guard lock(mutex);
    time = std::chrono::steady_clock::now();
    is_reached = true;
    reached.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    reached.wait(lock, [this] { return is_reached; });
  }
  bool query() {
    const std::lock_guard lock(mutex);
    return is_reached;
  }
};

}  // namespace

struct mtia_stream_s {
  int32_t device;
  void* tag;
  std::mutex mutex = {};  // guards what follows
  std::condition_variable changed = {};
  bool has_thread = false;
  std::deque<Item> items = {};
  uint64_t submitted = 0;
  uint64_t finished = 0;
  std::string failed = {};  // the first item that failed since the stream was last synchronized; empty: none
};

struct mtia_event_s {
  bool timing;
  std::mutex mutex = {};
  std::shared_ptr<Record> record = nullptr;  // null: it was never recorded

  std::shared_ptr<Record> last() {
    const std::lock_guard lock(mutex);
    return record;
  }
};

namespace {

struct Block {
  int32_t device;
  uint64_t size;
};

struct Driver {
  std::mutex mutex;  // guards what follows
  mtia_init_params settings{};
  pid_t process = 0;                        // that initialized; 0: none
  std::map<mtia_device_ptr, Block> blocks;  // by address
  std::map<int32_t, uint64_t> used;         // bytes of each device
};

// Leaked: threads of the process may still call when it ends.
Driver& driver() {
  static Driver& instance = *new Driver;
  return instance;
}

thread_local char message[256];

[[gnu::format(printf, 2, 3)]] mtia_status fail(mtia_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  return status;
}

const char* last_error_message() {
  return message;
}

// What every function asks first: whether there is such a device, and this process may use it.
mtia_status check_device(int32_t device) {
  const Driver& d = driver();
  if (d.process == 0) return fail(MTIA_ERROR_NOT_INITIALIZED, "@NAME@: initialize() has not been called");
  if (d.process != getpid()) {
    return fail(MTIA_ERROR_FORKED, "@NAME@: the process has forked, and the child cannot use the device");
  }
  if (device < 0 || device >= d.settings.num_devices) {
    return fail(MTIA_ERROR_INVALID_DEVICE, "@NAME@: there is no device %d, only %d", device, d.settings.num_devices);
  }
  return MTIA_SUCCESS;
}

#define REQUIRE(condition) \
  if (!(condition)) return fail(MTIA_ERROR_INVALID_VALUE, "@NAME@: %s: not so: %s", __func__, #condition)

// Of a struct with a struct_size, what there is; the rest is zero. See Growth in mtia_runtime.h.
template <typename Struct>
Struct whole(const Struct& given) {
  Struct known{};
  std::memcpy(&known, &given, std::min<size_t>(given.struct_size, sizeof(known)));
  return known;
}

#define CHECK_DEVICE(device) \
  if (const mtia_status status_ = check_device(device); status_ != MTIA_SUCCESS) return status_

// Devices -----------------------------------------------------------------------------------------------------------

mtia_status initialize(const mtia_init_params* params) {
  REQUIRE(params != nullptr && params->struct_size >= MTIA_INIT_PARAMS_SIZE_1);
  REQUIRE(params->num_devices > 0 && params->memory_per_device > 0);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  REQUIRE(d.process == 0);
  d.settings = whole(*params);
  d.process = getpid();
  return MTIA_SUCCESS;
}

mtia_status device_count(int32_t* count) {
  REQUIRE(count != nullptr);
  if (driver().process == 0) return fail(MTIA_ERROR_NOT_INITIALIZED, "@NAME@: as many as initialize() is asked for");
  *count = driver().settings.num_devices;
  return MTIA_SUCCESS;
}

mtia_status device_properties(int32_t device, mtia_device_properties* properties) {
  REQUIRE(properties != nullptr && properties->struct_size >= MTIA_DEVICE_PROPERTIES_SIZE_1);
  CHECK_DEVICE(device);
  std::snprintf(properties->name, sizeof(properties->name), "@NAME@ on the host");
  std::snprintf(properties->architecture, sizeof(properties->architecture), "x86-64");
  properties->total_memory = driver().settings.memory_per_device;
  properties->l2_cache_size = 1 << 20;
  properties->multi_processor_count = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  properties->warp_size = 32;
  properties->capability_major = 1;
  properties->capability_minor = 0;
  return MTIA_SUCCESS;
}

// What streams do ----------------------------------------------------------------------------------------------------

thread_local mtia_stream runs_work_of = nullptr;

void note_failure(mtia_stream stream, const Item& item) {
  if (stream->failed.empty()) stream->failed = item.name;
}

mtia_status say_failure(mtia_stream stream) {
  return fail(MTIA_ERROR_LAUNCH_FAILED, "@NAME@: %s failed", stream->failed.c_str());
}

// The stream's thread, which lives as long as the process.
void run_items(mtia_stream stream) {
  constexpr std::chrono::milliseconds kPatience{100};
  const auto has_items = [stream] { return !stream->items.empty(); };
  runs_work_of = stream;
  std::unique_lock lock(stream->mutex);
  for (;;) {
    if (!stream->changed.wait_for(lock, kPatience, has_items)) {
      lock.unlock();
      if (driver().settings.release_threads != nullptr) driver().settings.release_threads();
      lock.lock();
      stream->changed.wait(lock, has_items);
    }
    Item item = std::move(stream->items.front());
    stream->items.pop_front();
    lock.unlock();
    const mtia_status status = item.run();
    item.run = nullptr;  // who waits for the item finds what it held gone
    lock.lock();
    if (status != MTIA_SUCCESS) note_failure(stream, item);
    ++stream->finished;
    stream->changed.notify_all();
  }
}

// Queues the item. With launch blocking, returns when it is done, and whether it failed.
mtia_status submit(mtia_stream stream, Item item) {
  if (runs_work_of == stream) {  // from inside of an item, which the stream would wait for
    const mtia_status status = item.run();
    const std::lock_guard lock(stream->mutex);
    if (status != MTIA_SUCCESS) note_failure(stream, item);
    return MTIA_SUCCESS;
  }
  const bool blocks = driver().settings.launch_blocking != 0 && runs_work_of == nullptr;
  mtia_status status = MTIA_SUCCESS;
  if (blocks) item.run = [&status, run = std::move(item.run)] { return status = run(); };
  std::unique_lock lock(stream->mutex);
  if (!stream->has_thread) {
    std::thread(run_items, stream).detach();
    stream->has_thread = true;
  }
  stream->items.push_back(std::move(item));
  const uint64_t number = ++stream->submitted;
  stream->changed.notify_all();
  if (!blocks) return MTIA_SUCCESS;
  stream->changed.wait(lock, [&] { return stream->finished >= number; });
  return status == MTIA_SUCCESS ? status : say_failure(stream);
}

// A work item of the caller's, moved into memory of its own: see Note [Work item] in mtia_runtime.h.
class Work {
 public:
  explicit Work(const mtia_work& work) : work_(work), block_(std::aligned_alloc(16, (work.args_size + 31) / 16 * 16)) {
    if (work.relocate != nullptr) {
      work.relocate(block_, work.args);
    } else if (work.args_size != 0) {
      std::memcpy(block_, work.args, work.args_size);
    }
  }
  ~Work() {
    if (work_.destroy != nullptr) work_.destroy(block_);
    std::free(block_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  mtia_status run(int32_t device, void* tag) const {
    const mtia_work_context context{device, std::max(work_.num_threads, 1), tag};
    return work_.run(block_, &context);
  }

 private:
  const mtia_work work_;
  void* const block_;
};

// Memory ------------------------------------------------------------------------------------------------------------

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  REQUIRE(address != nullptr && size > 0);
  CHECK_DEVICE(device);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  if (size > d.settings.memory_per_device - d.used[device]) {
    return fail(MTIA_ERROR_OUT_OF_MEMORY, "@NAME@: %llu bytes are not free", static_cast<unsigned long long>(size));
  }
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fail(MTIA_ERROR_OUT_OF_MEMORY, "@NAME@: the host is out of memory");
  *address = reinterpret_cast<mtia_device_ptr>(memory);
  d.blocks[*address] = Block{device, size};
  d.used[device] += size;
  return MTIA_SUCCESS;
}

mtia_status memory_free(int32_t device, mtia_device_ptr address) {
  CHECK_DEVICE(device);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  const auto block = d.blocks.find(address);
  if (block == d.blocks.end()) return fail(MTIA_ERROR_INVALID_VALUE, "@NAME@: no memory was allocated at this address");
  munmap(reinterpret_cast<void*>(address), block->second.size);
  d.used[device] -= block->second.size;
  d.blocks.erase(block);
  return MTIA_SUCCESS;
}

mtia_status memory_info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  REQUIRE(free_bytes != nullptr && total_bytes != nullptr);
  CHECK_DEVICE(device);
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  *total_bytes = d.settings.memory_per_device;
  *free_bytes = *total_bytes - d.used[device];
  return MTIA_SUCCESS;
}

// The device in whose memory all of the range lies; -1: none.
int32_t device_of(mtia_device_ptr address, uint64_t size) {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  auto block = d.blocks.upper_bound(address);
  if (block == d.blocks.begin()) return -1;
  const auto& [start, found] = *--block;
  return address - start < found.size && size <= found.size - (address - start) ? found.device : -1;
}

mtia_status memory_device(const void* pointer, int32_t* device) {
  REQUIRE(device != nullptr);
  const int32_t found = device_of(reinterpret_cast<mtia_device_ptr>(pointer), 1);
  if (found < 0) return fail(MTIA_ERROR_INVALID_VALUE, "@NAME@: not an address of device memory");
  *device = found;
  return MTIA_SUCCESS;
}

mtia_status memory_host_offset(int64_t* offset) {
  REQUIRE(offset != nullptr);
  *offset = 0;  // device addresses are host addresses here
  return MTIA_SUCCESS;
}

mtia_status memory_copy(mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  REQUIRE(stream != nullptr && kind >= MTIA_COPY_HOST_TO_DEVICE && kind <= MTIA_COPY_DEVICE_TO_DEVICE);
  CHECK_DEVICE(stream->device);
  if (size == 0) return MTIA_SUCCESS;
  REQUIRE(to != 0 && (kind == MTIA_COPY_DEVICE_TO_HOST || device_of(to, size) >= 0));
  REQUIRE(from != 0 && (kind == MTIA_COPY_HOST_TO_DEVICE || device_of(from, size) >= 0));
  return submit(stream, {"memory_copy", [=] {
                           std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
                           return MTIA_SUCCESS;
                         }});
}

mtia_status memory_fill(mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t pattern_size,
                        uint64_t count) {
  REQUIRE(stream != nullptr && pattern != nullptr && pattern_size <= 16 && std::has_single_bit(pattern_size));
  CHECK_DEVICE(stream->device);
  if (count == 0) return MTIA_SUCCESS;
  REQUIRE(count <= UINT64_MAX / pattern_size && device_of(to, count * pattern_size) >= 0);
  const std::string copy(static_cast<const char*>(pattern), pattern_size);
  return submit(stream, {"memory_fill", [=] {
                           auto* bytes = reinterpret_cast<unsigned char*>(to);
                           for (uint64_t i = 0; i < count; ++i, bytes += copy.size()) {
                             std::memcpy(bytes, copy.data(), copy.size());
                           }
                           return MTIA_SUCCESS;
                         }});
}

// Streams -----------------------------------------------------------------------------------------------------------

mtia_status stream_create(int32_t device, int32_t, void* tag, mtia_stream* stream) {
  REQUIRE(stream != nullptr);
  CHECK_DEVICE(device);
  *stream = new mtia_stream_s{device, tag};  // for as long as the process lives
  return MTIA_SUCCESS;
}

mtia_status stream_query(mtia_stream stream) {
  REQUIRE(stream != nullptr);
  CHECK_DEVICE(stream->device);
  const std::lock_guard lock(stream->mutex);
  return stream->finished == stream->submitted ? MTIA_SUCCESS : MTIA_ERROR_NOT_READY;
}

mtia_status stream_synchronize(mtia_stream stream) {
  REQUIRE(stream != nullptr);
  CHECK_DEVICE(stream->device);
  std::unique_lock lock(stream->mutex);
  stream->changed.wait(lock, [stream, last = stream->submitted] { return stream->finished >= last; });
  if (stream->failed.empty()) return MTIA_SUCCESS;
  const mtia_status status = say_failure(stream);
  stream->failed.clear();  // it is reported once
  return status;
}

mtia_status stream_wait_event(mtia_stream stream, mtia_event event) {
  REQUIRE(stream != nullptr && event != nullptr);
  CHECK_DEVICE(stream->device);
  const auto record = event->last();
  if (record == nullptr) return MTIA_SUCCESS;
  return submit(stream, {"stream_wait_event", [record] {
                           record->wait();
                           return MTIA_SUCCESS;
                         }});
}

mtia_status stream_launch(mtia_stream stream, const mtia_work* work) {
  REQUIRE(stream != nullptr && work != nullptr && work->struct_size >= MTIA_WORK_SIZE_1 && work->run != nullptr);
  CHECK_DEVICE(stream->device);
  const auto owned = std::make_shared<const Work>(whole(*work));
  return submit(stream, {work->name != nullptr ? work->name : "work",
                         [owned, device = stream->device, tag = stream->tag] { return owned->run(device, tag); }});
}

// Events ------------------------------------------------------------------------------------------------------------

mtia_status event_create(int32_t enable_timing, mtia_event* event) {
  REQUIRE(event != nullptr);
  CHECK_DEVICE(0);
  *event = new mtia_event_s{enable_timing != 0};
  return MTIA_SUCCESS;
}

mtia_status event_destroy(mtia_event event) {
  REQUIRE(event != nullptr);
  delete event;
  return MTIA_SUCCESS;
}

mtia_status event_record(mtia_event event, mtia_stream stream) {
  REQUIRE(event != nullptr && stream != nullptr);
  CHECK_DEVICE(stream->device);
  const auto record = std::make_shared<Record>();
  const mtia_status status = submit(stream, {"event_record", [record] {
                                               record->reach();
                                               return MTIA_SUCCESS;
                                             }});
  const std::lock_guard lock(event->mutex);
  event->record = record;
  return status;
}

mtia_status event_query(mtia_event event) {
  REQUIRE(event != nullptr);
  CHECK_DEVICE(0);
  const auto record = event->last();
  return record == nullptr || record->query() ? MTIA_SUCCESS : MTIA_ERROR_NOT_READY;
}

mtia_status event_synchronize(mtia_event event) {
  REQUIRE(event != nullptr);
  CHECK_DEVICE(0);
  if (const auto record = event->last()) record->wait();
  return MTIA_SUCCESS;
}

mtia_status event_elapsed_time(mtia_event start, mtia_event end, double* milliseconds) {
  REQUIRE(start != nullptr && end != nullptr && milliseconds != nullptr);
  const auto from = start->last();
  const auto to = end->last();
  if (from == nullptr || to == nullptr || !start->timing || !end->timing) {
    return fail(MTIA_ERROR_INVALID_VALUE, "@NAME@: an event was not recorded, or was made without timing");
  }
  if (!from->query() || !to->query()) return MTIA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<double, std::milli>(to->time - from->time).count();
  return MTIA_SUCCESS;
}

mtia_runtime_api make_table() {
  mtia_runtime_api api{};
  api.struct_size = sizeof(api);
  api.abi_version = MTIA_RUNTIME_ABI_VERSION;
  api.capabilities = MTIA_CAPABILITY_HOST_VIEW;
  api.name = "@NAME@";
  api.version = "0.1.0";
  api.last_error_message = &last_error_message;
  api.initialize = &initialize;
  api.device_count = &device_count;
  api.device_properties = &device_properties;
  api.memory_allocate = &memory_allocate;
  api.memory_free = &memory_free;
  api.memory_info = &memory_info;
  api.memory_device = &memory_device;
  api.memory_host_offset = &memory_host_offset;
  api.memory_copy = &memory_copy;
  api.memory_fill = &memory_fill;
  api.stream_create = &stream_create;
  api.stream_query = &stream_query;
  api.stream_synchronize = &stream_synchronize;
  api.stream_wait_event = &stream_wait_event;
  api.stream_launch = &stream_launch;
  api.event_create = &event_create;
  api.event_destroy = &event_destroy;
  api.event_record = &event_record;
  api.event_query = &event_query;
  api.event_synchronize = &event_synchronize;
  api.event_elapsed_time = &event_elapsed_time;
  return api;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  static const mtia_runtime_api table = make_table();
  return abi_version == MTIA_RUNTIME_ABI_VERSION ? &table : nullptr;
}
