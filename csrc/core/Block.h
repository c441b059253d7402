// The blocks of the allocator: their sizes, free lists, and table by address. For the files of the allocator only, and
// called with its lock held: see Note [Locks of the allocator] in BlockAllocator.cpp.
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

// More than any device has; smaller sizes can be rounded without overflow.
inline constexpr size_t kNoDeviceHas = std::numeric_limits<size_t>::max() / 2;

constexpr size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr size_t segment_size_for(size_t size) {
  if (size <= kSmallRequest) return kSmallSegment;
  return size < kLargeRequest ? kLargeSegment : round_up(size, kSegmentRounding);
}

struct Block;

// The order of LargeFreeBlocks: by size, then address.
struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* block, size_t size) const;
};
using LargeFreeSet = std::set<Block*, BySize>;

// A part of a segment. The blocks of a segment are linked in order of address. No two free ones are neighbours, nor are
// two without memory.
struct Block {
  mtia_device_ptr address = 0;
  size_t size = 0;
  size_t requested = 0;
  Stream* stream = nullptr;
  struct MemoryPool* pool = nullptr;
  bool is_in_small_segment = false;    // of requests up to 1 MiB
  bool expandable = false;             // of an expandable segment
  bool counts_as_oversize = false;     // in the statistics; max_split_size may change before the block is freed
  bool segment_is_oversize = false;    // the same for a segment, in its first block
  bool mapped = true;                  // false: addresses without memory, see Note [Expandable segments]; then in_use
  bool in_use = false;                 // handed out, or waiting for events
  bool allocated = false;              // handed out
  int32_t pending_events = 0;          // that must complete before the block is free
  Block* previous = nullptr;           // neighbours in the segment
  Block* next = nullptr;               //
  Block* previous_free = nullptr;      // in a list of SmallFreeBlocks
  Block* next_free = nullptr;          // the same, or in a window, or among unused Block objects
  LargeFreeSet::node_type set_node;    // of LargeFreeBlocks, while the block is not in it
  Block* next_in_bucket = nullptr;     // of BlockTable
  std::vector<Stream*> other_streams;  // that use it, by record_stream
  TraceContext context;                // of the allocation, while history is recorded
  TraceContext segment_context;        // of a segment, in its first block
  uint64_t free_since = 0;             // in the order of frees, for garbage collection
  uint64_t captures_before = 0;        // captures that had ended when the block was handed out
  const void* tag = nullptr;           // by BlockAllocator::set_tag

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
  // For mapped blocks: whether an ordinary segment, or a mapped range of an expandable one, begins with it.
  bool begins_range() const { return previous == nullptr || !previous->mapped; }
};

inline bool BySize::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->address < b->address;
}
inline bool BySize::operator()(const Block* block, size_t size) const {
  return block->size < size;
}

// A stack for each multiple of kBlockRounding, and a bit for each stack that is not empty: the best fit is the first
// set bit.
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
  // Removes and returns a block of exactly this size; null: there is none.
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

// Inserting and removing allocate nothing: a block outside holds its node of the set.
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

// All Block objects: those that have memory are in a hash table by address, the others in a list. None is moved or
// destroyed. prepare() allocates for all other functions, so that nothing throws between taking a block off its list
// and handing it out.
class BlockTable {
 public:
  // From now on `count` blocks can be taken.
  void prepare(size_t count) {
    while (num_unused_ < count) {
      if (all_.size() == buckets_.size()) grow();
      Block* block = &all_.emplace_back();
      LargeFreeBlocks::prepare(block);
      put(block);
    }
  }
  Block* take() noexcept {
    MTIA_ASSERT(num_unused_ > 0);  // it has been prepared
    Block* block = unused_;
    unused_ = block->next_free;
    --num_unused_;
    return block;
  }
  // Of a block that was taken.
  void set_address(Block* block, mtia_device_ptr address) noexcept {
    MTIA_ASSERT(block->address == 0 && address != 0);
    block->address = address;
    enter(block);
  }
  void put(Block* block) noexcept {
    if (block->address != 0) {
      Block** link = &bucket_of(block->address);
      while (*link != block) link = &(*link)->next_in_bucket;
      *link = block->next_in_bucket;
      block->address = 0;
    }
    block->next_free = unused_;
    unused_ = block;
    ++num_unused_;
  }
  // Null: no block begins at the address.
  Block* find(mtia_device_ptr address) const noexcept {
    Block* block = buckets_[index_of(address)];
    while (block != nullptr && block->address != address) block = block->next_in_bucket;
    return block;
  }
  size_t num_used() const { return all_.size() - num_unused_; }

 private:
  // Fibonacci hashing: it spreads neighbours, and the multiples of large powers of two that segments begin at.
  size_t index_of(mtia_device_ptr address) const noexcept {
    return (address / kBlockRounding * 0x9E3779B97F4A7C15) >> shift_;
  }
  Block*& bucket_of(mtia_device_ptr address) noexcept { return buckets_[index_of(address)]; }
  void enter(Block* block) noexcept {
    Block*& bucket = bucket_of(block->address);
    block->next_in_bucket = bucket;
    bucket = block;
  }
  void grow() {
    buckets_ = std::vector<Block*>(2 * buckets_.size());
    --shift_;
    for (Block& block : all_) {
      if (block.address != 0) enter(&block);
    }
  }

  std::deque<Block> all_;
  Block* unused_ = nullptr;  // linked by next_free
  size_t num_unused_ = 0;
  int shift_ = 64 - 10;
  std::vector<Block*> buckets_ = std::vector<Block*>(size_t{1} << 10);  // linked by next_in_bucket
};

}  // namespace torch_mtia::core
