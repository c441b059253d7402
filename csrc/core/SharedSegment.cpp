#include "SharedSegment.h"

#include <map>
#include <mutex>

#include "../runtime/forks.h"
#include "../runtime/loader.h"

namespace torch_mtia::core {
namespace {

struct Live {
  Live() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  std::mutex mutex;
  std::map<uint64_t, uint64_t> sizes;  // by address
};

// Leaked: segments may be destroyed while the process ends.
Live& live() {
  static auto* const instance = new Live();
  return *instance;
}

}  // namespace

SharedSegment::SharedSegment(int32_t device, uint64_t size, int32_t file) : device_(device), size_(size) {
  runtime::call(&mtia_runtime_api::memory_reserve, device_, size_, &address_);
  try {
    runtime::call(&mtia_runtime_api::memory_map_shared, device_, address_, size_, file);
  } catch (...) {
    runtime::driver().memory_release(device_, address_);
    throw;
  }
  const std::lock_guard lock(live().mutex);
  live().sizes.emplace(address_, size_);
}

SharedSegment::~SharedSegment() {
  {
    const std::lock_guard lock(live().mutex);
    live().sizes.erase(address_);
  }
  runtime::driver().memory_unmap(device_, address_, size_);
  runtime::driver().memory_release(device_, address_);
}

std::vector<mtia_span> SharedSegment::live_ranges() {
  const std::lock_guard lock(live().mutex);
  std::vector<mtia_span> result;
  for (const auto& [address, size] : live().sizes) result.push_back({address, size});
  return result;
}

}  // namespace torch_mtia::core
