// The segments that the allocator holds of the driver, and the blocks in them. For the files of the allocator only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "AllocatorHistory.h"
#include "AllocatorStatistics.h"
#include "Block.h"
#include "MemoryLimit.h"
#include "Pools.h"
#include "UnusedBlocks.h"

namespace torch_mtia::core {

// Takes segments from the driver and gives them back, cuts them into blocks and merges those that are free. A block is
// free, in a list of its stream and pool, or in use: handed out, or freed by the program and not yet released.
class Segments {
 public:
  using OptionsSource = BlockAllocator::OptionsSource;
  using Choice = std::function<bool(const Block*)>;

  Segments(int32_t device, OptionsSource options, Pools& pools, AllocatorHistory& history)
      : device_(device), options_(options), pools_(pools), history_(history), limit_(device) {}

  // Null block: the device is full, or `may_collect` and the threshold asks for a collection first.
  struct Attempt {
    Block* block = nullptr;
    uint64_t garbage = 0;  // bytes to collect
  };
  // A block of `size` bytes, of which the program uses `requested`.
  Attempt allocate(size_t size, size_t requested, Stream* stream, TraceContext& context, bool may_collect);
  // The same for a small block that is parked, without the history, which must be off; null: none is of that size.
  Block* allocate_parked(size_t size, size_t requested, Stream* stream) {
    Block* block = pools_.free_blocks(pools_.of(stream), stream).parked.take(size);
    if (block != nullptr) [[likely]]
      count_allocation(block, requested);
    return block;
  }
  // The program has freed the block, which stays in use until it is released.
  void take_back(Block* block, const TraceContext& context) noexcept {
    decrease(stats_.allocation, block, 1);
    decrease(stats_.allocated_bytes, block, block->size);
    if (std::exchange(block->counts_as_oversize, false)) decrease(stats_.oversize_allocations, 1);
    block->allocated = false;
    record(TraceAction::kFreeRequested, block->address, block->requested, block->stream, block->pool->id, context);
  }
  // The block is free: other streams are done with it, and what its own stream still does comes before its next use.
  void release(Block* block) noexcept {
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

  // Merges what is parked: whoever looks at free blocks does it first. See Note [Parked blocks].
  void merge_parked() noexcept;
  // How many blocks have been released so far: those that are free and were released later have a larger free_since.
  uint64_t num_frees() const { return num_frees_; }
  // The streams whose free blocks, of those chosen, can go back to the driver once the streams have been waited for.
  std::set<Stream*> users(const Choice& chosen) const;
  // The blocks that have been free for longest and can go back, `bytes` of them.
  std::set<const Block*> oldest(uint64_t bytes) const;
  // Gives free memory that is chosen, for blocks or whole pages of them, back to the driver. Throws
  // runtime::DriverError; what the driver has not taken is kept.
  void give_back(const Choice& chosen);

  // Calls apply(block) for the blocks of all segments, in order of address.
  template <typename Apply>
  void for_each_block(Apply apply) const {
    for (const Block* first : by_address()) {
      for (const Block* block = first; block != nullptr; block = block->behind) apply(block);
    }
  }

  const std::string& refusal() const { return refusal_; }  // why the latest segment could not be had
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
  Block* take_expandable(size_t size, MemoryPool& pool, Stream* stream, const TraceContext& context);
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
  UnusedBlocks unused_;
  std::set<Block*> segments_;  // the first block of each
  std::string refusal_;
  uint64_t num_frees_ = 0;
};

}  // namespace torch_mtia::core
