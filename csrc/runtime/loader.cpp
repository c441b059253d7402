#include "loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "machine_memory.h"

namespace torch_mtia::runtime {
namespace {

// Read on every call that enters the driver.
constinit std::atomic<const mtia_runtime_api*> loaded_api{nullptr};
constinit std::atomic<bool> initialized{false};

// Everything else, behind a lock. Leaked: threads of the driver may still call when the process ends.
struct Setup {
  std::mutex mutex;
  std::optional<DriverSettings> settings;
};

Setup& setup() {
  static Setup& instance = *std::make_unique<Setup>().release();
  return instance;
}

[[noreturn]] void refuse(mtia_status status, const std::string& message) {
  throw DriverError(status, "torch_mtia: " + message);
}

struct Entry {
  const char* name;
  size_t offset;
  uint64_t capability;  // that makes the entry required; 0: always
};

#define MTIA_ENTRY(name, capability)                    \
  Entry {                                               \
    #name, offsetof(mtia_runtime_api, name), capability \
  }
constexpr std::array entries{
    MTIA_ENTRY(last_error_message, 0),
    MTIA_ENTRY(initialize, 0),
    MTIA_ENTRY(device_count, 0),
    MTIA_ENTRY(device_properties, 0),
    MTIA_ENTRY(device_synchronize, 0),
    MTIA_ENTRY(memory_allocate, 0),
    MTIA_ENTRY(memory_free, 0),
    MTIA_ENTRY(memory_info, 0),
    MTIA_ENTRY(memory_reserve, MTIA_CAPABILITY_VIRTUAL_MEMORY),
    MTIA_ENTRY(memory_release, MTIA_CAPABILITY_VIRTUAL_MEMORY),
    MTIA_ENTRY(memory_map, MTIA_CAPABILITY_VIRTUAL_MEMORY),
    MTIA_ENTRY(memory_unmap, MTIA_CAPABILITY_VIRTUAL_MEMORY),
    MTIA_ENTRY(memory_device, 0),
    MTIA_ENTRY(memory_host_offset, MTIA_CAPABILITY_HOST_VIEW),
    MTIA_ENTRY(memory_copy, 0),
    MTIA_ENTRY(memory_fill, 0),
    MTIA_ENTRY(stream_priority_range, 0),
    MTIA_ENTRY(stream_create, 0),
    MTIA_ENTRY(stream_destroy, 0),
    MTIA_ENTRY(stream_query, 0),
    MTIA_ENTRY(stream_synchronize, 0),
    MTIA_ENTRY(stream_wait_event, 0),
    MTIA_ENTRY(stream_launch, 0),
    MTIA_ENTRY(event_create, 0),
    MTIA_ENTRY(event_destroy, 0),
    MTIA_ENTRY(event_record, 0),
    MTIA_ENTRY(event_query, 0),
    MTIA_ENTRY(event_synchronize, 0),
    MTIA_ENTRY(event_elapsed_time, 0),
    MTIA_ENTRY(module_load, MTIA_CAPABILITY_KERNELS),
    MTIA_ENTRY(module_unload, MTIA_CAPABILITY_KERNELS),
    MTIA_ENTRY(module_get_function, MTIA_CAPABILITY_KERNELS),
    MTIA_ENTRY(stream_launch_kernel, MTIA_CAPABILITY_KERNELS),
    MTIA_ENTRY(stream_begin_capture, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(stream_end_capture, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(stream_capture_id, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_num_nodes, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_node, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_instantiate, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_launch, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_destroy, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(graph_exec_destroy, MTIA_CAPABILITY_GRAPHS),
    MTIA_ENTRY(set_tracer, MTIA_CAPABILITY_TRACING),
};
#undef MTIA_ENTRY

bool is_null(const mtia_runtime_api& api, const Entry& entry) {
  void (*function)() = nullptr;
  std::memcpy(&function, reinterpret_cast<const std::byte*>(&api) + entry.offset, sizeof(function));
  return function == nullptr;
}

void check_table(const mtia_runtime_api& api, const std::string& library) {
  if (api.abi_version != MTIA_RUNTIME_ABI_VERSION) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the driver '" + library + "' returned a table of ABI version " +
                                         std::to_string(api.abi_version) + " where version " +
                                         std::to_string(MTIA_RUNTIME_ABI_VERSION) + " was asked for");
  }
  if (api.struct_size < sizeof(mtia_runtime_api)) {
    refuse(MTIA_ERROR_NOT_SUPPORTED,
           "the table of the driver '" + library + "' has " + std::to_string(api.struct_size) + " bytes, ABI version " +
               std::to_string(MTIA_RUNTIME_ABI_VERSION) + " has " + std::to_string(sizeof(mtia_runtime_api)) +
               "; build the driver with the current mtia_runtime.h");
  }
  std::string missing;
  for (const Entry& entry : entries) {
    const bool required = entry.capability == 0 || (api.capabilities & entry.capability) != 0;
    if (required && is_null(api, entry)) missing += (missing.empty() ? "" : ", ") + std::string(entry.name);
  }
  if (!missing.empty()) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the driver '" + library + "' lacks required functions: " + missing);
  }
}

const mtia_runtime_api* load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (handle == nullptr) {
    const char* reason = dlerror();
    refuse(MTIA_ERROR_NOT_SUPPORTED,
           "cannot load the driver '" + library + "': " + (reason != nullptr ? reason : "unknown error"));
  }
  const auto get_api = reinterpret_cast<mtia_runtime_get_api_fn>(dlsym(handle, "mtia_runtime_get_api"));
  if (get_api == nullptr) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "'" + library + "' is not a driver: it does not export mtia_runtime_get_api");
  }
  const mtia_runtime_api* api = get_api(MTIA_RUNTIME_ABI_VERSION);
  if (api == nullptr) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the driver '" + library + "' does not speak ABI version " +
                                         std::to_string(MTIA_RUNTIME_ABI_VERSION) +
                                         " (MTIA_RUNTIME_ABI_VERSION in mtia_runtime.h)");
  }
  check_table(*api, library);
  return api;
}

const DriverSettings& configured(const Setup& setup) {
  if (!setup.settings) refuse(MTIA_ERROR_NOT_INITIALIZED, "no driver is configured: call configure() first");
  return *setup.settings;
}

std::string library() {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  return configured(shared).library;
}

std::string name_of(mtia_status status) {
  switch (status) {
#define MTIA_STATUS(name) \
  case name:              \
    return #name
    MTIA_STATUS(MTIA_SUCCESS);
    MTIA_STATUS(MTIA_ERROR_NOT_READY);
    MTIA_STATUS(MTIA_ERROR_INVALID_VALUE);
    MTIA_STATUS(MTIA_ERROR_INVALID_DEVICE);
    MTIA_STATUS(MTIA_ERROR_OUT_OF_MEMORY);
    MTIA_STATUS(MTIA_ERROR_NOT_SUPPORTED);
    MTIA_STATUS(MTIA_ERROR_NOT_INITIALIZED);
    MTIA_STATUS(MTIA_ERROR_FORKED);
    MTIA_STATUS(MTIA_ERROR_LAUNCH_FAILED);
    MTIA_STATUS(MTIA_ERROR_DEVICE_LOST);
    MTIA_STATUS(MTIA_ERROR_INTERNAL);
#undef MTIA_STATUS
  }
  return "status " + std::to_string(static_cast<int>(status)) + ", which mtia_runtime.h does not define";
}

const mtia_runtime_api& load_once() {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  const mtia_runtime_api* api = loaded_api.load(std::memory_order_relaxed);
  if (api == nullptr) {
    api = load(configured(shared).library);
    loaded_api.store(api, std::memory_order_release);
  }
  return *api;
}

// Says on stderr, while the driver initializes, that it takes long. A driver that hangs there cannot be interrupted,
// and another thread cannot initialize it in the caller's place: what belongs to that thread would end with it.
class InitializationNotice {
 public:
  explicit InitializationNotice(const std::string& library)
      : thread_([library](const std::stop_token& returned) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any changed;
          if (changed.wait_for(lock, returned, kPatience, [&] { return returned.stop_requested(); })) return;
          std::fprintf(stderr, "torch_mtia: still waiting for initialize of the driver '%s' after %d s\n",
                       library.c_str(), static_cast<int>(kPatience.count()));
        }) {}

 private:
  static constexpr std::chrono::seconds kPatience{10};
  std::jthread thread_;
};

void initialize_once() {
  const mtia_runtime_api& api = load_once();
  Setup& shared = setup();
  std::unique_lock lock(shared.mutex);
  if (initialized.load(std::memory_order_relaxed)) return;
  const DriverSettings& settings = configured(shared);
  mtia_init_params params{};
  params.struct_size = sizeof(params);
  params.num_devices = settings.num_devices;
  params.memory_per_device = settings.memory_per_device != 0 ? settings.memory_per_device
                                                             : MachineMemory().default_capacity(settings.num_devices);
  params.launch_blocking = settings.launch_blocking ? 1 : 0;
  params.delay_seed = settings.delay_seed;
  params.parallel_for = settings.parallel_for;
  params.num_threads = settings.num_threads;
  params.release_threads = settings.release_threads;
  const mtia_status status = [&] {
    const InitializationNotice notice(settings.library);
    return api.initialize(&params);
  }();
  if (status == MTIA_SUCCESS) return initialized.store(true, std::memory_order_release);
  lock.unlock();
  check(status, &mtia_runtime_api::initialize);  // the next call tries again
}

}  // namespace

void configure(const DriverSettings& settings) {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  if (initialized.load(std::memory_order_relaxed)) {
    refuse(MTIA_ERROR_INVALID_VALUE, "a process has one driver, and '" + configured(shared).library + "' is in use");
  }
  shared.settings = settings;
  loaded_api.store(nullptr, std::memory_order_release);  // what was asked of another library so far started nothing
}

int32_t device_count() {
  int32_t count = 0;
  const mtia_status status = driver().device_count(&count);
  if (status == MTIA_ERROR_NOT_INITIALIZED) {
    // A driver that offers as many devices as it is asked for; this is what it will be asked for.
    Setup& shared = setup();
    const std::lock_guard lock(shared.mutex);
    return configured(shared).num_devices;
  }
  check(status, &mtia_runtime_api::device_count);
  if (count < 0) reject(&mtia_runtime_api::device_count, "says that there are " + std::to_string(count));
  return count;
}

const mtia_runtime_api& driver() {
  const mtia_runtime_api* api = loaded_api.load(std::memory_order_acquire);
  return api != nullptr ? *api : load_once();
}

void ensure_initialized() {
  if (!initialized.load(std::memory_order_acquire)) [[unlikely]]
    initialize_once();
}

bool is_initialized() {
  return initialized.load(std::memory_order_acquire);
}

bool launch_blocking() {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  return configured(shared).launch_blocking;
}

std::string describe(size_t offset) {
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.offset == offset; });
  return std::string(entry->name) + " of the driver '" + library() + "'";
}

DriverError last_error(mtia_status status, const std::string& function) {
  const char* message = driver().last_error_message();
  if (message == nullptr || *message == '\0') message = "the driver does not say why";
  return DriverError(status, message + (" (" + function + " returned " + name_of(status) + ")"));
}

MemoryInfo memory_info(int32_t device) {
  MemoryInfo info{};
  call(&mtia_runtime_api::memory_info, device, &info.free_bytes, &info.total_bytes);
  if (info.free_bytes > info.total_bytes) {
    reject(&mtia_runtime_api::memory_info, "says that " + std::to_string(info.free_bytes) + " of " +
                                               std::to_string(info.total_bytes) + " bytes are free");
  }
  return info;
}

}  // namespace torch_mtia::runtime
