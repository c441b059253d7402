// What a package made by AOTInductor consists of, whether it can run here, and how its errors reach the program.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "../device/MTIAKernel.h"
#include "shim.h"

namespace torch_mtia {

// Raises RuntimeError, naming the package, what it was made for, and what is here.
void check_package(const std::string& path, const torch_mtia_package_info& info);

// The same for the kernels in a folder: each kind of processor that they need is asked of the driver.
void check_kernel_images(const std::string& folder);

// A kernel of a package: launched with pointers to its arguments, as CUDA's are.
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

// A package passes on only that a shim failed, and its message. The runner of the package raises the exception itself.
//
// Stores the exception for the runner, on this thread, and gives libtorch its message.
AOTITorchError keep_shim_error(std::exception_ptr error);

// Returns what was stored last on this thread, or null, and clears it.
std::exception_ptr take_shim_error();

// The body of a shim. Without autograd, which has no part in packages: results would be bound to what made them, and
// operators that write into memory refuse what requires gradients.
template <typename Body>
AOTITorchError run_shim(const Body& body) {
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    body();
    return AOTI_TORCH_SUCCESS;
  } catch (...) {
    return keep_shim_error(std::current_exception());
  }
}

}  // namespace torch_mtia
