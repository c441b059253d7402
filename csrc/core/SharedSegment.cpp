#include "SharedSegment.h"

#include "../runtime/loader.h"

namespace torch_mtia::core {

SharedSegment::SharedSegment(int32_t device, uint64_t size, int32_t file) : device_(device), size_(size) {
  runtime::call(&mtia_runtime_api::memory_reserve, device_, size_, &address_);
  try {
    runtime::call(&mtia_runtime_api::memory_map_shared, device_, address_, size_, file);
  } catch (...) {
    runtime::driver().memory_release(device_, address_);
    throw;
  }
}

SharedSegment::~SharedSegment() {
  runtime::driver().memory_unmap(device_, address_, size_);
  runtime::driver().memory_release(device_, address_);
}

}  // namespace torch_mtia::core
