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
#include <forward_list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "forks.h"
#include "machine_memory.h"

namespace torch_mtia::runtime {
namespace {

// Read on every call that enters the driver.
constinit std::atomic<const mtia_runtime_api*> loaded_api{nullptr};
constinit std::atomic<bool> initialized{false};
constinit std::atomic<int> initializing{0};  // threads that initialize the driver, or wait for the one that does
constinit std::atomic<bool> forked{false};

// Everything else, guarded by a lock. Leaked: threads of the driver may still call when the process ends.
struct Setup {
  Setup() {
    hold_at_forks(ForkOrder::kSettings, mutex);
    in_forked_children([] {
      if (initialized.load() || initializing.load() != 0) forked.store(true);
    });
  }

  // Held while the driver initializes, which may take long: a fork does not wait for it, and a child does not take it.
  std::mutex initialization;
  std::mutex mutex;  // of what follows; may be taken with the other one held
  std::optional<DriverSettings> settings;
  std::forward_list<mtia_runtime_api> tables;  // of all libraries loaded so far: others may be using them
};

Setup& setup() {
  static Setup& instance = *std::make_unique<Setup>().release();
  return instance;
}

[[noreturn]] void refuse(mtia_status status, const std::string& message) {
  throw DriverError(status, "torch_mtia: " + message);
}

// A function of the table.
struct Entry {
  const char* name;
  size_t offset;
  uint64_t capability;  // a driver with all of these bits has to have it
};

#define MTIA_ENTRY(name, capability) Entry{#name, offsetof(mtia_runtime_api, name), capability},
constexpr std::array entries{MTIA_RUNTIME_FUNCTIONS(MTIA_ENTRY)};
#undef MTIA_ENTRY

// What comes before the functions.
constexpr size_t kHead = offsetof(mtia_runtime_api, last_error_message);

constexpr bool lists_the_whole_table() {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].offset != kHead + i * sizeof(void*)) return false;
  }
  return sizeof(mtia_runtime_api) == kHead + entries.size() * sizeof(void*);
}
static_assert(lists_the_whole_table(), "MTIA_RUNTIME_FUNCTIONS and mtia_runtime_api differ");

bool is_null(const mtia_runtime_api& api, const Entry& entry) {
  void (*function)() = nullptr;
  std::memcpy(&function, reinterpret_cast<const std::byte*>(&api) + entry.offset, sizeof(function));
  return function == nullptr;
}

// The driver's table as this header has it: what the driver's own lacks is null, and what is beyond is left out.
mtia_runtime_api checked_copy(const mtia_runtime_api& table, const std::string& library) {
  if (table.struct_size < kHead) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the table of the driver '" + library + "' has " +
                                         std::to_string(table.struct_size) + " bytes, which is less than its head");
  }
  if (table.abi_version != MTIA_RUNTIME_ABI_VERSION) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the driver '" + library + "' returned a table of ABI version " +
                                         std::to_string(table.abi_version) + " where version " +
                                         std::to_string(MTIA_RUNTIME_ABI_VERSION) + " was asked for");
  }
  if (table.name == nullptr || table.version == nullptr) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the table of the driver '" + library + "' has no name or no version");
  }
  mtia_runtime_api api{};
  const size_t size = std::min<size_t>(table.struct_size, sizeof(api));
  std::memcpy(&api, &table, size - size % sizeof(void*));  // half a pointer is none
  api.struct_size = sizeof(api);
  std::string missing;
  for (const Entry& entry : entries) {
    const bool required = (api.capabilities & entry.capability) == entry.capability;
    if (required && is_null(api, entry)) missing += (missing.empty() ? "" : ", ") + std::string(entry.name);
  }
  if (!missing.empty()) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "the driver '" + library + "' lacks required functions: " + missing);
  }
  return api;
}

mtia_runtime_api load(const std::string& library) {
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
  return checked_copy(*api, library);
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
    api = &shared.tables.emplace_front(load(configured(shared).library));
    loaded_api.store(api, std::memory_order_release);
  }
  return *api;
}

// Says on stderr, while the driver initializes, that it takes long. A driver that hangs there cannot be interrupted,
// and another thread cannot initialize it in the caller's place: what belongs to that thread would end with it.
class InitializationNotice {
 public:
  explicit InitializationNotice(const std::string& library)
      : thread_([this, &library] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, kPatience, [this] { return has_returned_; })) return;
          std::fprintf(stderr, "torch_mtia: still waiting for initialize of the driver '%s' after %d s\n",
                       library.c_str(), static_cast<int>(kPatience.count()));
        }) {}
  ~InitializationNotice() {
    {
      const std::lock_guard lock(mutex_);
      has_returned_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  InitializationNotice(const InitializationNotice&) = delete;
  InitializationNotice& operator=(const InitializationNotice&) = delete;

 private:
  static constexpr std::chrono::seconds kPatience{10};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_returned_ = false;
  std::thread thread_;
};

void initialize_once() {
  struct Initializing {
    Initializing() { ++initializing; }
    ~Initializing() { --initializing; }
  };
  check_not_forked();
  const mtia_runtime_api& api = load_once();
  Setup& shared = setup();
  const Initializing until_return;
  std::unique_lock lock(shared.initialization);
  if (initialized.load(std::memory_order_relaxed)) return;
  const DriverSettings settings = [&] {
    const std::lock_guard settings_lock(shared.mutex);
    return configured(shared);
  }();
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
  check_not_forked();
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  if (initialized.load() || initializing.load() != 0) {
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

bool is_forked() noexcept {
  return forked.load(std::memory_order_acquire);
}

void check_not_forked() {
  if (!is_forked()) [[likely]]
    return;
  refuse(MTIA_ERROR_FORKED,
         "this process was forked from one that uses the device, and cannot use it; start it with the multiprocessing "
         "start method 'spawn' (or 'forkserver') instead of 'fork'");
}

bool launch_blocking() {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  return configured(shared).launch_blocking;
}

bool poison() {
  Setup& shared = setup();
  const std::lock_guard lock(shared.mutex);
  return configured(shared).poison;
}

std::string describe(size_t offset) {
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.offset == offset; });
  return std::string(entry->name) + " of the driver '" + library() + "'";
}

DriverError absent(const std::string& function) {
  return DriverError(MTIA_ERROR_NOT_SUPPORTED, "torch_mtia: there is no " + function + ", where it is optional");
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
