#include "FreeBlocks.h"

#include <bit>

namespace torch_mtia::core {

Block* SmallFreeBlocks::best_fit(size_t size) const {
  const size_t first = list_of(size);
  uint64_t bits = not_empty_[first / 64] & (~uint64_t{0} << (first % 64));
  for (size_t word = first / 64;;) {
    if (bits != 0) return lists_[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
    if (++word == not_empty_.size()) return nullptr;
    bits = not_empty_[word];
  }
}

}  // namespace torch_mtia::core
