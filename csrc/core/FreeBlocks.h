// The blocks of the allocator, and the free ones of a stream in an order that finds the best fit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
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
  Block* expandable = nullptr;  // the first block of the stream's expandable segment

  void insert(Block* block) { block->is_in_small_segment ? small.insert(block) : large.insert(block); }
  void remove(Block* block) { block->is_in_small_segment ? small.remove(block) : large.remove(block); }
};

// See Note [Private pools] in BlockAllocator.h.
struct MemoryPool {
  PoolId id{0, 0};
  int users = 0;  // of a private pool
  size_t num_segments = 0;
  std::vector<Stream*> used_in;  // by use_pool_in
  std::unordered_map<Stream*, std::unique_ptr<FreeBlocks>> free_blocks;

  bool is_default() const { return id == PoolId{0, 0}; }
  bool may_return_segments() const { return is_default() || users == 0; }
};

}  // namespace torch_mtia::core
