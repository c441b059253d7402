// Segments, which the allocator gets from the driver, the blocks in them, and the pools that they belong to. For the
// files of the allocator only, and called with its lock held: see Note [Locks of the allocator] in BlockAllocator.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../runtime/loader.h"
#include "AllocatorHistory.h"
#include "Block.h"

namespace torch_mtia::core {

// Statistics.
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

// How much of the device's memory the allocator may hold.
class MemoryLimit {
 public:
  explicit MemoryLimit(int32_t device) : device_(device) {}

  double fraction() const { return fraction_; }
  void set_fraction(double fraction) {
    if (!(fraction >= 0 && fraction <= 1)) {
      throw std::invalid_argument("a memory fraction is between 0 and 1, not " + std::to_string(fraction));
    }
    fraction_ = fraction;
  }

  // The limit. Throws runtime::DriverError.
  uint64_t bytes() const {
    const uint64_t total = runtime::memory_info(device_).total_bytes;
    return fraction_ >= 1 ? total : static_cast<uint64_t>(fraction_ * static_cast<double>(total));
  }
  bool allows(uint64_t bytes) const { return fraction_ >= 1 || bytes <= this->bytes(); }

 private:
  const int32_t device_;
  double fraction_ = 1;
};

class Segments;

// The expandable segment of one stream in one pool: see Note [Expandable segments] in BlockAllocator.h. Its blocks are
// those of `segments`.
class ExpandableSegment {
 public:
  // A free block of at least `size` bytes, in no list. Null: no range has room for it, or the device is full.
  Block* take(Segments& segments, size_t size, MemoryPool& pool, Stream* stream, const TraceContext& context);

  // The whole pages of a free block that is in no list, as a block of their own in no list; the rest is free. Needs two
  // unused blocks.
  static Block* detach_pages(Segments& segments, Block* block) noexcept;
  // The driver has taken the memory of a block from detach_pages.
  void unmapped(Segments& segments, Block* block) noexcept;

 private:
  Block* reserve(Segments& segments, MemoryPool& pool, Stream* stream);
  static Block* map_front(Segments& segments, Block* block, size_t size, const TraceContext& context);
  void release_if_empty(Segments& segments, Block* block) noexcept;

  Block* first_ = nullptr;  // null: it has no addresses
};

// The free blocks of one stream: those in small segments and the others.
//
// Note [Parked blocks]
// Most programs free a small block and soon ask for one of the same size. Free small blocks are parked: they are not
// merged with free neighbours, and count as in use. They are merged when a request finds none of its size, and before
// segments are examined.
struct FreeBlocks {
  SmallFreeBlocks parked;
  SmallFreeBlocks small;
  LargeFreeBlocks large;
  ExpandableSegment expandable;

  void insert(Block* block) { block->is_in_small_segment ? small.insert(block) : large.insert(block); }
  void remove(Block* block) { block->is_in_small_segment ? small.remove(block) : large.remove(block); }
};

// See Note [Private pools] in BlockAllocator.h.
struct MemoryPool {
  PoolId id{0, 0};
  int users = 0;              // of a private pool
  bool is_of_graphs = false;  // a stream was directed to it
  size_t num_segments = 0;
  SegmentSource source;
  std::vector<Stream*> used_in;  // streams, by Pools::use_in
  std::unordered_map<Stream*, std::unique_ptr<FreeBlocks>> free_blocks;

  bool is_default() const { return id == PoolId{0, 0}; }
  bool may_return_segments() const { return is_default() || users == 0; }
};

// The pools, and which streams and threads allocate from private ones. A private pool exists while it has users or
// segments, or a stream or thread is directed to it.
class Pools {
 public:
  MemoryPool& of(Stream* stream) {
    if (directed_.empty() && directed_threads_.empty()) [[likely]]
      return default_;
    if (const auto found = directed_.find(stream); found != directed_.end()) return *found->second;
    const auto found = directed_threads_.find(std::this_thread::get_id());
    return found == directed_threads_.end() ? default_ : *found->second.back().pool;
  }

  FreeBlocks& free_blocks(MemoryPool& pool, Stream* stream) {
    return &pool == &default_ && stream == recent_stream_ ? *recent_ : find_free_blocks(pool, stream);
  }
  FreeBlocks& free_blocks(const Block* block) { return free_blocks(*block->pool, block->stream); }
  // Calls apply(pool, stream, free_blocks) for those of all pools and streams.
  template <typename Apply>
  void for_each_free_blocks(Apply apply) const {
    for (const auto& [stream, free] : default_.free_blocks) apply(default_, stream, *free);
    for (const auto& [id, pool] : private_) {
      for (const auto& [stream, free] : pool->free_blocks) apply(*pool, stream, *free);
    }
  }

  void use(PoolId id) { ++find(id).users; }
  void release(PoolId id);  // throws std::invalid_argument if nobody uses it
  void use_in(PoolId id, Stream* stream);
  void direct(Stream* stream, PoolId id) {
    MemoryPool& pool = find(id);
    pool.is_of_graphs = true;
    directed_[stream] = &pool;
  }
  void direct_to_default(Stream* stream) { directed_.erase(stream); }
  void set_source(PoolId id, const SegmentSource& source) { find(id).source = source; }
  DirectionId direct_thread(PoolId id);
  void end_direction(DirectionId id);  // throws std::invalid_argument if it has ended
  // Called when a pool may have lost its last segment.
  void discard_unused() noexcept;

 private:
  MemoryPool& find(PoolId id);  // makes it, if need be
  FreeBlocks& find_free_blocks(MemoryPool& pool, Stream* stream);

  MemoryPool default_;
  std::map<PoolId, std::unique_ptr<MemoryPool>> private_;
  std::unordered_map<Stream*, MemoryPool*> directed_;
  struct Direction {
    DirectionId id;
    MemoryPool* pool;
  };
  DirectionId num_directions_ = 0;
  std::unordered_map<std::thread::id, std::vector<Direction>> directed_threads_;  // the innermost last
  // A cache of one entry: nearly every call is for the same stream, in the default pool.
  Stream* recent_stream_ = nullptr;
  FreeBlocks* recent_ = nullptr;
};

// Gets segments from the driver and returns them, cuts them into blocks and merges free ones. A block is free, in a
// list of its stream and pool, or in use: handed out, or freed by the program and not yet released.
class Segments {
 public:
  using OptionsSource = BlockAllocator::OptionsSource;
  using Choice = std::function<bool(const Block*)>;

  Segments(int32_t device, OptionsSource options, Pools& pools, AllocatorHistory& history)
      : device_(device), options_(options), pools_(pools), history_(history), limit_(device) {}

  // Null block: the device is full, or `may_collect` and the threshold requires a collection first.
  struct Attempt {
    Block* block = nullptr;
    uint64_t garbage = 0;  // bytes to collect
  };
  // A block of at least `size` bytes, of which the program uses `requested`.
  Attempt allocate(size_t size, size_t requested, Stream* stream, TraceContext& context, bool may_collect);
  // A parked block of exactly `size` bytes; null: there is none. The history must be off.
  Block* allocate_parked(size_t size, size_t requested, Stream* stream) {
    Block* block = pools_.free_blocks(pools_.of(stream), stream).parked.take(size);
    if (block != nullptr) [[likely]]
      count_allocation(block, requested);
    return block;
  }
  // The block that begins at the address and that the program has; null: there is none.
  Block* find(mtia_device_ptr address) const noexcept {
    Block* block = blocks_.find(address);
    return block != nullptr && block->allocated ? block : nullptr;
  }
  void set_tag(Block* block, const void* tag) noexcept {
    num_tagged_ += (tag != nullptr) - (block->tag != nullptr);
    block->tag = tag;
  }
  size_t num_tagged() const { return num_tagged_; }
  // The program has freed the block, which stays in use until it is released.
  void free(Block* block, const TraceContext& context) noexcept {
    MTIA_ASSERT(block->allocated);  // else it is freed twice
    decrease(stats_.allocation, block, 1);
    decrease(stats_.allocated_bytes, block, block->size);
    if (std::exchange(block->counts_as_oversize, false)) decrease(stats_.oversize_allocations, 1);
    block->allocated = false;
    if (block->tag != nullptr) [[unlikely]]
      set_tag(block, nullptr);
    record(TraceAction::kFreeRequested, block->address, block->requested, block->stream, block->pool->id, context);
  }
  // The block is free: other streams are done with it, and its own stream orders its next use after the last.
  void release(Block* block) noexcept {
    MTIA_ASSERT(block->in_use && !block->allocated && block->pending_events == 0);
    decrease(stats_.active, block, 1);
    decrease(stats_.active_bytes, block, block->size);
    decrease(stats_.requested_bytes, block, block->requested);
    block->other_streams.clear();
    block->free_since = ++num_frees_;
    record(TraceAction::kFreeCompleted, block->address, block->requested, block->stream, block->pool->id,
           block->context);
    block->context.reset();
    if (block->is_in_small_segment) [[likely]] {
      pools_.free_blocks(block).parked.insert(block);
    } else {
      merge_free(block);
    }
  }

  // Merges parked blocks: called before free blocks are examined. See Note [Parked blocks].
  void merge_parked() noexcept;
  // How many blocks have been released so far. Free blocks that were released later have a larger free_since.
  uint64_t num_frees() const { return num_frees_; }
  // The streams that must be waited for before the chosen free memory can go back to the driver.
  std::set<Stream*> users(const Choice& chosen) const;
  // `bytes` of returnable blocks that have been free for longest.
  std::set<const Block*> oldest(uint64_t bytes) const;
  // Returns the chosen free memory, blocks or whole pages of them, to the driver. Throws runtime::DriverError; memory
  // that the driver has not taken stays free.
  void release_unused(const Choice& chosen);

  // Calls apply(block) for all blocks in order of address.
  template <typename Apply>
  void for_each_block(Apply apply) const {
    for (const Block* first : by_address()) {
      for (const Block* block = first; block != nullptr; block = block->next) apply(block);
    }
  }

  // Whether the blocks, the lists of those that are free, the pools and the statistics agree.
  bool is_valid() const;

  const std::string& refusal() const { return refusal_; }  // why the latest segment was refused
  MemoryLimit& limit() { return limit_; }
  AllocatorStats& stats() { return stats_; }
  void record(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
              const TraceContext& context) noexcept {
    if (history_.enabled()) history_.add(action, address, size, stream, pool, context);
  }

 private:
  friend class ExpandableSegment;

  using Take = mtia_status (*mtia_runtime_api::*)(int32_t device, uint64_t size, mtia_device_ptr* address);

  bool is_oversize(const Block* block) const {
    return !block->is_in_small_segment && !block->expandable && block->size >= options_().max_split_size;
  }
  // The program has the block now.
  void count_allocation(Block* block, size_t requested) noexcept {
    block->allocated = true;
    block->requested = requested;
    increase(stats_.allocation, block, 1);
    increase(stats_.active, block, 1);
    increase(stats_.allocated_bytes, block, block->size);
    increase(stats_.active_bytes, block, block->size);
    increase(stats_.requested_bytes, block, requested);
  }
  bool has_space_for(size_t size);
  uint64_t garbage_with(size_t size) const;
  size_t returnable_bytes(const Block* block) const;
  std::vector<const Block*> by_address() const;

  void insert_free(Block* block) noexcept;
  void remove_free(Block* block) noexcept;
  Block* take_free(size_t size, MemoryPool& pool, Stream* stream);
  Block* new_segment(Take take, size_t size, bool small, MemoryPool& pool, Stream* stream);
  Block* take_segment(size_t size, MemoryPool& pool, Stream* stream);
  void end_segment(Block* block) noexcept;
  Block* cut(Block* block, size_t size) noexcept;
  void split(Block* block, size_t size) noexcept;
  Block* merge(Block* front, Block* back) noexcept;
  void merge_free(Block* block) noexcept;
  void merge_parked(FreeBlocks& free) noexcept;
  template <typename Apply>
  void for_each_returnable(Apply apply) const;
  std::vector<Block*> detach(const Choice& chosen);
  void returned(Block* block) noexcept;
  static void report_return(const Block* block);

  const int32_t device_;
  const OptionsSource options_;
  Pools& pools_;
  AllocatorHistory& history_;
  MemoryLimit limit_;
  AllocatorStats stats_;
  BlockTable blocks_;
  size_t num_tagged_ = 0;
  std::set<Block*> segments_;  // the first block of each
  std::string refusal_;
  uint64_t num_frees_ = 0;
};

}  // namespace torch_mtia::core
