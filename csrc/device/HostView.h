// Device addresses as addresses that the host may dereference.
//
// Only work running in a stream, and the host after synchronizing, may use the result.
#pragma once

#include <cstdint>

namespace torch_mtia {

class HostView {
 public:
  // Whether the driver says that it has one. Loads the driver, starts nothing. Throws runtime::DriverError.
  static bool is_offered();
  // Asks the driver where it is. Called once the device is initialized.
  static void initialize();

  // False: the driver's memory cannot be reached from the host, and neither function below may be called.
  static bool available() { return available_; }
  static void* to_host(const void* device_address) {
    return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(device_address) + offset_);
  }
  static void* to_device(const void* host_address) {
    return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(host_address) - offset_);
  }

 private:
  static bool available_;
  static int64_t offset_;
};

}  // namespace torch_mtia
