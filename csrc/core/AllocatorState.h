// What BlockAllocator keeps, and the steps that its functions are made of. For the files of the allocator only.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "AllocatorHistory.h"
#include "BlockAllocator.h"
#include "Event.h"
#include "FreeBlocks.h"
#include "SmallMutex.h"
#include "Stream.h"

namespace torch_mtia::core {

// Requests up to kSmallRequest share segments of kSmallSegment, those below kLargeRequest segments of kLargeSegment;
// larger ones get their own, in steps of kSegmentRounding.
inline constexpr size_t kSmallRequest = size_t{1} << 20;
inline constexpr size_t kLargeRequest = size_t{10} << 20;
inline constexpr mtia_device_ptr kSegmentAlignment = 4096;  // as mtia_runtime.h promises
inline constexpr size_t kLargeSegment = size_t{20} << 20;
inline constexpr size_t kSegmentRounding = size_t{2} << 20;

// No device has that much; smaller sizes can be rounded without overflow.
inline constexpr size_t kNoDeviceHas = std::numeric_limits<size_t>::max() / 2;

constexpr size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr size_t segment_size_for(size_t size) {
  if (size <= kSmallRequest) return kSmallSegment;
  return size < kLargeRequest ? kLargeSegment : round_up(size, kSegmentRounding);
}

inline void increase(Stat& stat, size_t amount) {
  stat.current += static_cast<int64_t>(amount);
  stat.peak = std::max(stat.peak, stat.current);
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

// A freed block that a stream may still use, until the event is complete.
struct PendingFree {
  Event event;
  Block* block;
};

// Note [Locks of the allocator]
// `mutex` guards everything. It is held while calling the driver, but never for a call that waits for the device: a
// thread that frees needs it, and may be the one that lets the device go on. Who waits for the device to give segments
// back holds no lock at all, not even the interpreter's: what is waited for may be work that allocates itself. Order:
// mutex, the driver's own locks. Functions whose name ends in `_locked` need `mutex`.
struct BlockAllocator::State {
  State(int32_t device, OptionsSource options) : device(device), options(options) {}

  const int32_t device;
  const OptionsSource options;
  mutable SmallMutex mutex;
  AllocatorStats stats;
  std::set<Block*> segments;  // the first block of each
  MemoryPool default_pool;
  std::map<PoolId, std::unique_ptr<MemoryPool>> private_pools;
  std::unordered_map<Stream*, MemoryPool*> directed;  // streams whose allocations come from a private pool
  Stream* recent_stream = nullptr;  // and its free blocks in the default pool, of which nearly every call is
  FreeBlocks* recent = nullptr;
  double memory_fraction = 1;
  std::string refusal;  // why the latest segment could not be had
  uint64_t num_frees = 0;
  AllocatorHistory history;
  std::unordered_map<Stream*, std::deque<PendingFree>> pending;  // a stream's events complete in order
  size_t num_pending = 0;
  std::unordered_map<Stream*, std::vector<Block*>> used_in_capture;  // freed blocks, until the stream's capture ends
  std::vector<Event> unused_events;
  std::deque<Block> blocks;  // all there are, never moved
  Block* unused_blocks = nullptr;
  size_t num_unused_blocks = 0;
  // See Note [Memory of running work].
  struct Window {
    WindowId id;
    bool closed = false;
    Block* freed = nullptr;         // a list, of the stream's own blocks
    std::vector<Block*> used = {};  // of other streams, which this one used
  };
  std::unordered_map<Stream*, std::deque<Window>> windows;  // in the order of opening; the first one is open
  size_t num_windows = 0;
  WindowId last_window = 0;

  // Null block: the device is full, or `may_collect` and the threshold asks for a collection first.
  struct Attempt {
    Block* block = nullptr;
    uint64_t garbage = 0;  // bytes to collect
  };
  Attempt try_allocate(size_t size, size_t requested, Stream* stream, TraceContext& context, bool may_collect);
  // Returns to the driver the free segments that `chosen` is true for, after waiting for the device; inside running
  // work, without waiting, those that no work uses.
  void reclaim(const std::function<bool(const Block*)>& chosen);
  void reclaim_all();
  void collect_garbage(uint64_t bytes);
  uint64_t garbage_locked(size_t size) const;

  uint64_t memory_limit() const;
  MemoryPool& pool_locked(PoolId id);
  MemoryPool& pool_for_locked(Stream* stream);
  void discard_unused_pools_locked() noexcept;
  FreeBlocks& free_blocks_locked(MemoryPool& pool, Stream* stream);
  FreeBlocks& free_blocks_locked(const Block* block) { return free_blocks_locked(*block->pool, block->stream); }
  void prepare_blocks_locked(size_t count);
  Block* new_block_locked() noexcept;
  void discard_block_locked(Block* block) noexcept;
  void insert_free_locked(Block* block) noexcept;
  void remove_free_locked(Block* block) noexcept;
  Block* take_free_locked(size_t size, MemoryPool& pool, Stream* stream);
  using Take = mtia_status (*mtia_runtime_api::*)(int32_t device, uint64_t size, mtia_device_ptr* address);
  Block* new_segment_locked(Take take, size_t size, bool small, MemoryPool& pool, Stream* stream);
  Block* take_segment_locked(size_t size, MemoryPool& pool, Stream* stream);
  // See Note [Expandable segments].
  Block* take_expandable_locked(size_t size, MemoryPool& pool, Stream* stream, const TraceContext& context);
  Block* reserve_locked(MemoryPool& pool, Stream* stream);
  Block* map_front_locked(Block* block, size_t size, const TraceContext& context);
  Block* detach_pages_locked(Block* block) noexcept;
  void unmapped_locked(Block* block) noexcept;
  void release_if_empty_locked(Block* block) noexcept;
  bool is_oversize(const Block* block) const {
    return !block->is_in_small_segment && !block->expandable && block->size >= options().max_split_size;
  }
  bool has_space_for_locked(size_t size);
  Block* cut_locked(Block* block, size_t size) noexcept;
  void split_locked(Block* block, size_t size) noexcept;
  Block* merge_locked(Block* front, Block* back) noexcept;
  void count_free_locked(Block* block) noexcept;
  void release_locked(Block* block) noexcept;
  void merge_free_locked(Block* block) noexcept;
  void merge_parked_locked(FreeBlocks& free) noexcept;
  void merge_all_parked_locked() noexcept;
  void release_in_order_locked(Block* block) noexcept;
  void delay_release_locked(Block* block) noexcept;
  void wait_for_use_locked(Block* block, Stream* stream);
  void wait_for_late_use_locked(Block* block, Stream* stream) noexcept;
  void close_window_locked(Stream* stream, WindowId id) noexcept;
  std::deque<Window>* windows_locked(Stream* stream) noexcept;
  void release_completed_locked();
  std::vector<const Block*> segments_by_address_locked() const;
  size_t returnable_bytes_locked(const Block* block) const;
  std::set<Stream*> used_streams_locked(const std::function<bool(const Block*)>& chosen);
  void return_segments_locked(const std::function<bool(const Block*)>& chosen);
  std::vector<Block*> detach_free_segments_locked(const std::function<bool(const Block*)>& chosen);
  void returned_locked(Block* block) noexcept;
  void record_locked(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
                     const TraceContext& context) noexcept {
    if (history.enabled()) history.add(action, address, size, stream, pool, context);
  }
};

}  // namespace torch_mtia::core
