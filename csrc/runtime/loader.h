// Finds, checks and starts the driver that implements mtia_runtime.h. No PyTorch, no global with a destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "mtia_runtime.h"

namespace torch_mtia::runtime {

// A driver call failed. `status` tells why; what() carries the driver's own message, the function and the library.
class DriverError : public std::runtime_error {
 public:
  DriverError(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const mtia_status status;
};

struct DriverSettings {
  std::string library;  // path of the shared library
  int32_t num_devices = 1;
  uint64_t memory_per_device = 0;  // bytes
  bool launch_blocking = false;
  uint64_t delay_seed = 0;  // 0: no delays
  bool poison = false;      // for the allocator above the driver
  mtia_parallel_for parallel_for = nullptr;
  int32_t (*num_threads)() = nullptr;
  void (*release_threads)() = nullptr;
};

// Says which driver to use and how. Called before anything else here; loads nothing, and the last call before the
// driver is initialized counts. Throws DriverError after that.
void configure(const DriverSettings& settings);

// The driver's table, a copy: functions that the driver lacks, or does not know of, are null. Loads the library on
// first use and checks ABI version and required functions; starts nothing, so it may be called before a fork. Throws
// DriverError.
const mtia_runtime_api& driver();

// Devices of the driver; before initialization, those that it will have. Starts nothing. Throws DriverError, also for
// a number that makes no sense.
int32_t device_count();

// Calls the driver's `initialize` once; later calls cost one atomic load. Thread safe. Throws DriverError.
void ensure_initialized();
bool is_initialized();

// As configured.
bool launch_blocking();
bool poison();

// A function of the driver, as errors name it: `offset` is its place in the table.
std::string describe(size_t offset);

template <typename Function>
std::string describe(Function mtia_runtime_api::* function) {
  const mtia_runtime_api& api = driver();
  return describe(static_cast<size_t>(reinterpret_cast<const std::byte*>(&(api.*function)) -
                                      reinterpret_cast<const std::byte*>(&api)));
}

// For a function that the driver lacks, which was described so.
DriverError absent(const std::string& function);

// The error of the calling thread's last call of the driver, which was described so.
DriverError last_error(mtia_status status, const std::string& function);

template <typename Function>
DriverError last_error(mtia_status status, Function mtia_runtime_api::* function) {
  return last_error(status, describe(function));
}

// For a function that succeeded and gave what it never may. Throws DriverError.
template <typename Function>
[[noreturn]] void reject(Function mtia_runtime_api::* function, const std::string& what_it_did) {
  throw DriverError(MTIA_ERROR_INTERNAL, "torch_mtia: " + describe(function) + " " + what_it_did);
}

// Throws DriverError for anything but MTIA_SUCCESS, which this function of the table has returned.
template <typename Function>
void check(mtia_status status, Function mtia_runtime_api::* function) {
  if (status != MTIA_SUCCESS) [[unlikely]]
    throw last_error(status, function);
}

// Calls a function of the table. Throws DriverError, also for one that the driver lacks.
template <typename Function, typename... Arguments>
void call(Function mtia_runtime_api::* function, Arguments... arguments) {
  const Function to_call = driver().*function;
  if (to_call == nullptr) [[unlikely]]
    throw absent(describe(function));
  check(to_call(arguments...), function);
}

struct MemoryInfo {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

// Of a device in use. Throws DriverError.
MemoryInfo memory_info(int32_t device);

}  // namespace torch_mtia::runtime
