// Finds, checks and starts the driver behind mtia_runtime.h. No PyTorch, no global with a destructor.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "mtia_runtime.h"

namespace torch_mtia::runtime {

// A driver call failed. `status` tells why; what() carries the driver's own message.
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
  mtia_parallel_for parallel_for = nullptr;
  int32_t (*num_threads)() = nullptr;
  void (*release_threads)() = nullptr;
};

// Says which driver to use and how. Called before anything else here; loads nothing, and the last call before the
// driver is loaded counts. Throws DriverError after that.
void configure(const DriverSettings& settings);

// The driver's table. Loads the library on first use and checks ABI version, struct size and required entries; starts
// nothing, so it may be called before a fork. Throws DriverError.
const mtia_runtime_api& driver();

// Devices of the driver; before initialization, those that it will have. Starts nothing. Throws DriverError.
int32_t device_count();

// Calls the driver's `initialize` once; later calls cost one atomic load. Thread safe. Throws DriverError.
void ensure_initialized();
bool is_initialized();

// Throws DriverError for anything but MTIA_SUCCESS.
void check(mtia_status status);

}  // namespace torch_mtia::runtime
