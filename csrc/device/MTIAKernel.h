// Kernels compiled by torch_mtia.triton, loaded and launched. See Note [Kernel image] in mtia_runtime.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "../core/Driver.h"
#include "MTIAStream.h"

namespace torch_mtia {

// The most bytes of packed arguments of a kernel.
inline constexpr uint32_t kMaxPackedArguments = 4096;

// One kernel on one device. It may be destroyed while launches of it are under way.
class MTIAKernel {
 public:
  // Raises RuntimeError for an image that the driver does not load, with the reason.
  MTIAKernel(c10::DeviceIndex device, std::string name, std::string_view image);

  const std::string& name() const { return name_; }
  c10::DeviceIndex device() const { return device_; }

  // Asynchronous. `packed_arguments` is the block that the image describes; it is read before the return. The stream
  // must be of the kernel's device. With launch blocking, raises what the kernel reports. A watch lives until the
  // launch has run; its programs run on one thread.
  void launch(const MTIAStream& stream, const std::array<int32_t, 3>& grid, const void* packed_arguments,
              uint32_t packed_arguments_size, const mtia_kernel_watch* watch = nullptr) const;

  // From now on launches tell kernels which memory is live. Kernels that were compiled to check their accesses do.
  static void set_check_bounds(bool check) { check_bounds_ = check; }

 private:
  static bool check_bounds_;

  const c10::DeviceIndex device_;
  const std::string name_;
  const core::Kernel kernel_;
};

}  // namespace torch_mtia
