#include "FreeBlocks.h"

#include <bit>

namespace torch_mtia::core {

void SmallFreeBlocks::insert(Block* block) {
  const size_t list = list_of(block->size);
  block->previous_free = nullptr;
  block->next_free = lists_[list];
  if (block->next_free != nullptr) block->next_free->previous_free = block;
  lists_[list] = block;
  not_empty_[list / 64] |= uint64_t{1} << (list % 64);
}

void SmallFreeBlocks::remove(Block* block) {
  const size_t list = list_of(block->size);
  (block->previous_free != nullptr ? block->previous_free->next_free : lists_[list]) = block->next_free;
  if (block->next_free != nullptr) block->next_free->previous_free = block->previous_free;
  if (lists_[list] == nullptr) not_empty_[list / 64] &= ~(uint64_t{1} << (list % 64));
}

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
