// A kernel of a package: launched with pointers to its arguments, as CUDA's are.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../device/MTIAKernel.h"

namespace torch_mtia {

class PackageKernel {
 public:
  // On the current device. Raises RuntimeError for what is no image, and for one that the driver does not load.
  PackageKernel(const std::string& name, std::string_view image);
  // As long as its header says.
  static std::string_view image_at(const void* address);

  c10::DeviceIndex device() const { return kernel_.device(); }

  // See aoti_torch_mtia_launch_kernel. Raises RuntimeError for a pointer to other memory.
  void launch(const MTIAStream& stream, const std::array<uint32_t, 3>& grid, const void* const* arguments) const;

 private:
  const MTIAKernel kernel_;
  const std::vector<mtia_kernel_argument> arguments_;
  const uint32_t packed_size_;
};

}  // namespace torch_mtia
