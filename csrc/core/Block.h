// The pieces of memory that the allocator is about, and their sizes. For the files of the allocator only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

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

}  // namespace torch_mtia::core
