// The blocks of the allocator, and the free ones of a stream in an order that finds the best fit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "BlockAllocator.h"

namespace torch_mtia::core {

inline constexpr size_t kBlockRounding = 512;
inline constexpr size_t kSmallSegment = size_t{2} << 20;

// The order of LargeFreeBlocks: by size, then address.
struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* block, size_t size) const;
};
using LargeFreeSet = std::set<Block*, BySize>;

// A piece of a segment. The pieces of a segment are linked in order of address; two free ones are never neighbours.
struct Block {
  mtia_device_ptr address = 0;
  size_t size = 0;
  size_t requested = 0;
  size_t segment_size = 0;
  Stream* stream = nullptr;
  bool handed_out = false;             // by allocate, and not freed
  bool in_use = false;                 // handed out, parked, or waiting for events or windows
  int32_t pending_events = 0;          // that must complete before the block is free
  Block* before = nullptr;             // neighbours in the segment
  Block* behind = nullptr;             //
  Block* previous_free = nullptr;      // in a list of SmallFreeBlocks
  Block* next_free = nullptr;          // likewise, or in the list of unused Block objects
  LargeFreeSet::node_type set_node;    // of LargeFreeBlocks, while the block is not in it; made with the block
  std::vector<Stream*> other_streams;  // that use it, by record_stream

  bool is_in_small_segment() const { return segment_size == kSmallSegment; }
  bool is_whole_segment() const { return before == nullptr && behind == nullptr; }
};

inline bool BySize::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->address < b->address;
}
inline bool BySize::operator()(const Block* block, size_t size) const {
  return block->size < size;
}

// A list for each multiple of kBlockRounding, last in first out, and a bit for each list that is not empty: the best
// fit is the first set bit.
class SmallFreeBlocks {
 public:
  void insert(Block* block);
  void remove(Block* block);
  Block* best_fit(size_t size) const;                                    // null: none fits
  Block* exact_fit(size_t size) const { return lists_[list_of(size)]; }  // likewise

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
  Block* best_fit(size_t size) const {
    const auto found = blocks_.lower_bound(size);
    return found == blocks_.end() ? nullptr : *found;
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

  void insert(Block* block) { block->is_in_small_segment() ? small.insert(block) : large.insert(block); }
  void remove(Block* block) { block->is_in_small_segment() ? small.remove(block) : large.remove(block); }
};

}  // namespace torch_mtia::core
