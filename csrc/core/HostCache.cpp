#include "HostCache.h"

namespace torch_mtia::core {

constinit ReturnHostCache return_host_cache = nullptr;

}  // namespace torch_mtia::core
