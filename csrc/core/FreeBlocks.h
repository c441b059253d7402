// The free blocks of a stream, in an order that finds the best fit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "Block.h"
#include "ExpandableSegment.h"

namespace torch_mtia::core {

// A list for each multiple of kBlockRounding, last in first out, and a bit for each list that is not empty: the best
// fit is the first set bit.
class SmallFreeBlocks {
 public:
  void insert(Block* block) {
    const size_t list = list_of(block->size);
    block->previous_free = nullptr;
    block->next_free = lists_[list];
    if (block->next_free != nullptr) block->next_free->previous_free = block;
    lists_[list] = block;
    not_empty_[list / 64] |= uint64_t{1} << (list % 64);
  }
  void remove(Block* block) {
    const size_t list = list_of(block->size);
    (block->previous_free != nullptr ? block->previous_free->next_free : lists_[list]) = block->next_free;
    if (block->next_free != nullptr) block->next_free->previous_free = block->previous_free;
    if (lists_[list] == nullptr) not_empty_[list / 64] &= ~(uint64_t{1} << (list % 64));
  }
  Block* best_fit(size_t size) const;  // null: none fits
  // Of just this size, and removes it; null: there is none.
  Block* take(size_t size) {
    Block* block = lists_[list_of(size)];
    if (block != nullptr) remove(block);
    return block;
  }

 private:
  static constexpr size_t kLists = kSmallSegment / kBlockRounding;
  static size_t list_of(size_t size) { return size / kBlockRounding - 1; }

  std::array<Block*, kLists> lists_{};
  std::array<uint64_t, kLists / 64> not_empty_{};
};

// Neither inserting nor removing allocates: a block keeps its node of the set.
class LargeFreeBlocks {
 public:
  static void prepare(Block* block) { block->set_node = LargeFreeSet{block}.extract(block); }

  void insert(Block* block) { blocks_.insert(std::move(block->set_node)); }
  void remove(Block* block) { block->set_node = blocks_.extract(block); }
  // Not larger than `limit`; null: none fits.
  Block* best_fit(size_t size, size_t limit) const {
    const auto found = blocks_.lower_bound(size);
    return found == blocks_.end() || (*found)->size > limit ? nullptr : *found;
  }

 private:
  LargeFreeSet blocks_;
};

// The free blocks that belong to one stream: those in small segments and the others.
//
// Note [Parked blocks]
// Most programs free a small block and soon ask for one of the same size. Such blocks are parked as they are: neither
// merged with their free neighbours nor cut out of them again. To their neighbours they look used. They are merged as
// soon as a request finds none of its size, or somebody looks at the segments.
struct FreeBlocks {
  SmallFreeBlocks parked;
  SmallFreeBlocks small;
  LargeFreeBlocks large;
  ExpandableSegment expandable;

  void insert(Block* block) { block->is_in_small_segment ? small.insert(block) : large.insert(block); }
  void remove(Block* block) { block->is_in_small_segment ? small.remove(block) : large.remove(block); }
};

}  // namespace torch_mtia::core
