// The pieces of memory that the allocator is about, their sizes, and the lists that they are in. For the files of the
// allocator only, and called with its lock held: see Note [Locks of the allocator] in BlockAllocator.cpp.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "../processor/assertion.h"
#include "BlockAllocator.h"

namespace torch_mtia::core {

inline constexpr size_t kBlockRounding = 512;
// Requests up to kSmallRequest share segments of kSmallSegment, those below kLargeRequest segments of kLargeSegment;
// larger ones get their own, in steps of kSegmentRounding.
inline constexpr size_t kSmallRequest = size_t{1} << 20;
inline constexpr size_t kSmallSegment = size_t{2} << 20;
inline constexpr size_t kLargeRequest = size_t{10} << 20;
inline constexpr size_t kLargeSegment = size_t{20} << 20;
inline constexpr size_t kSegmentRounding = size_t{2} << 20;
inline constexpr mtia_device_ptr kSegmentAlignment = 4096;  // as mtia_runtime.h promises

// No device has that much; smaller sizes can be rounded without overflow.
inline constexpr size_t kNoDeviceHas = std::numeric_limits<size_t>::max() / 2;

constexpr size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr size_t segment_size_for(size_t size) {
  if (size <= kSmallRequest) return kSmallSegment;
  return size < kLargeRequest ? kLargeSegment : round_up(size, kSegmentRounding);
}

// The order of LargeFreeBlocks: by size, then address.
struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* block, size_t size) const;
};
using LargeFreeSet = std::set<Block*, BySize>;

// A piece of a segment. The pieces of a segment are linked in order of address; two free ones are never neighbours, nor
// are two without memory.
struct Block {
  mtia_device_ptr address = 0;
  size_t size = 0;
  size_t requested = 0;
  Stream* stream = nullptr;
  struct MemoryPool* pool = nullptr;
  bool is_in_small_segment = false;    // whose blocks are those of requests up to 1 MiB
  bool expandable = false;             // of an expandable segment
  bool counts_as_oversize = false;     // in the statistics; max_split_size may change before the block is freed
  bool segment_is_oversize = false;    // likewise, in the first block of a segment: of the segment
  bool mapped = true;                  // false: only addresses, see Note [Expandable segments]; then it is in_use
  bool in_use = false;                 // handed out, or waiting for events
  bool allocated = false;              // handed out
  int32_t pending_events = 0;          // that must complete before the block is free
  Block* before = nullptr;             // neighbours in the segment
  Block* behind = nullptr;             //
  Block* previous_free = nullptr;      // in a list of SmallFreeBlocks
  Block* next_free = nullptr;          // likewise, or in the list of unused Block objects
  LargeFreeSet::node_type set_node;    // of LargeFreeBlocks, while the block is not in it; made with the block
  std::vector<Stream*> other_streams;  // that use it, by record_stream
  TraceContext context;                // of the allocation, while history is recorded
  TraceContext segment_context;        // in the first block of a segment: of the segment
  uint64_t free_since = 0;             // in the order of frees, for garbage collection
  uint64_t captures_before = 0;        // that had ended when the block was handed out

  bool is_whole_segment() const { return before == nullptr && behind == nullptr; }
  // Of mapped blocks: with the ordinary segment, or with a mapped part of an expandable one.
  bool begins_range() const { return before == nullptr || !before->mapped; }
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
  Block* best_fit(size_t size) const {  // null: none fits
    const size_t first = list_of(size);
    uint64_t bits = not_empty_[first / 64] & (~uint64_t{0} << (first % 64));
    for (size_t word = first / 64;;) {
      if (bits != 0) return lists_[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
      if (++word == not_empty_.size()) return nullptr;
      bits = not_empty_[word];
    }
  }
  // Calls apply(block) for all.
  template <typename Apply>
  void for_each(Apply apply) const {
    for (const Block* block : lists_) {
      for (; block != nullptr; block = block->next_free) apply(block);
    }
  }
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
  template <typename Apply>
  void for_each(Apply apply) const {
    for (const Block* block : blocks_) apply(block);
  }
  // Not larger than `limit`; null: none fits.
  Block* best_fit(size_t size, size_t limit) const {
    const auto found = blocks_.lower_bound(size);
    return found == blocks_.end() || (*found)->size > limit ? nullptr : *found;
  }

 private:
  LargeFreeSet blocks_;
};

// The Block objects that describe no memory now. Owns all that there are; none is moved or destroyed. What has been
// prepared is taken without fail, so that nothing throws between taking a block off its list and handing it out.
class UnusedBlocks {
 public:
  void prepare(size_t count) {
    while (count_ < count) {
      Block* block = &all_.emplace_back();
      LargeFreeBlocks::prepare(block);
      put(block);
    }
  }
  Block* take() noexcept {
    MTIA_ASSERT(count_ > 0);  // it has been prepared
    Block* block = first_;
    first_ = block->next_free;
    --count_;
    return block;
  }
  void put(Block* block) noexcept {
    block->next_free = first_;
    first_ = block;
    ++count_;
  }

 private:
  std::deque<Block> all_;
  Block* first_ = nullptr;  // linked by next_free
  size_t count_ = 0;
};

}  // namespace torch_mtia::core
