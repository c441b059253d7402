#include "Poison.h"

#include <cstddef>
#include <cstring>

#include "../runtime/loader.h"
#include "Driver.h"
#include "Segments.h"
#include "Stream.h"
#include "Waits.h"

namespace torch_mtia::core {
namespace {

// Without a host view, the memory stays as it is.
void write_at_once(const Block& block, Poison pattern) {
  if (!driver_info().can(MTIA_CAPABILITY_HOST_VIEW)) return;
  static const int64_t offset = host_view_offset();
  std::memset(reinterpret_cast<std::byte*>(block.address + static_cast<uint64_t>(offset)), static_cast<int>(pattern),
              block.size);
}

}  // namespace

void poison(const Block& block, Poison pattern, bool in_own_window) noexcept {
  const MemoryPool& pool = *block.pool;
  const Stream& stream = *block.stream;
  if (pool.is_of_graphs || pool.source.allocate != nullptr || stream.graph() != nullptr) return;
  try {
    if (in_own_window || (pattern == Poison::kFresh && RunningWork::on_this_thread(&stream))) {
      write_at_once(block, pattern);
    } else if (runtime::launch_blocking()) {
      if (stream.is_idle()) write_at_once(block, pattern);
    } else {
      runtime::driver().memory_fill(stream.handle(), block.address, &pattern, sizeof(pattern), block.size);
    }
  } catch (...) {
    // A driver that fails now fails the work that follows, too, which reports it.
  }
}

}  // namespace torch_mtia::core
