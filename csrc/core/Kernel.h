// A kernel of an image, loaded on a device: see Note [Kernel image] in mtia_runtime.h. No PyTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

// It may be destroyed while launches of it are under way.
class Kernel {
 public:
  // Throws runtime::DriverError for an image that the driver does not load. The driver must have
  // MTIA_CAPABILITY_KERNELS.
  Kernel(int32_t device, const std::string& name, std::string_view image);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  mtia_function function() const { return function_; }

 private:
  mtia_module module_ = nullptr;
  mtia_function function_ = nullptr;
};

}  // namespace torch_mtia::core
