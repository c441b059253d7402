// How the allocator counts. For the files of the allocator only.
#pragma once

#include <cstddef>

#include "Block.h"

namespace torch_mtia::core {

inline void increase(Stat& stat, size_t amount) {
  stat.current += static_cast<int64_t>(amount);
  if (stat.current > stat.peak) [[unlikely]]
    stat.peak = stat.current;
  stat.allocated += static_cast<int64_t>(amount);
}

inline void decrease(Stat& stat, size_t amount) {
  stat.current -= static_cast<int64_t>(amount);
  stat.freed += static_cast<int64_t>(amount);
}

inline StatIndex stat_index(const Block* block) {
  return block->is_in_small_segment ? kSmall : kLarge;
}

inline void increase(StatArray& stats, const Block* block, size_t amount) {
  increase(stats[kAll], amount);
  increase(stats[stat_index(block)], amount);
}

inline void decrease(StatArray& stats, const Block* block, size_t amount) {
  decrease(stats[kAll], amount);
  decrease(stats[stat_index(block)], amount);
}

}  // namespace torch_mtia::core
