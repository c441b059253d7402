// Segments that are addresses first and get memory where it is needed. See Note [Expandable segments] in
// BlockAllocator.h.
#include <algorithm>

#include "AllocatorState.h"
#include "DriverInfo.h"

namespace torch_mtia::core {
namespace {

// What can be mapped: multiples of it.
constexpr size_t kPage = kSegmentRounding;

bool can_become_free(const Block* block) {
  return !block->mapped || !block->in_use;
}

}  // namespace

// A free block of at least `size` bytes, in no list; null: the stream's segment has no place for it, the device is
// full, or such segments are not asked for.
Block* BlockAllocator::State::take_expandable_locked(size_t size, MemoryPool& pool, Stream* stream,
                                                     const TraceContext& context) {
  if (size <= kSmallRequest || !options().expandable_segments) return nullptr;
  Block* first = free_blocks_locked(pool, stream).expandable;
  if (first == nullptr) first = reserve_locked(pool, stream);
  // The first row of neighbours that is long enough, free or without memory.
  while (first != nullptr) {
    size_t available = 0;
    Block* end = first;
    for (; end != nullptr && can_become_free(end); end = end->behind) available += end->size;
    if (available >= size) break;
    first = end == nullptr ? nullptr : end->behind;
  }
  if (first == nullptr) return nullptr;

  Block* block = nullptr;
  for (Block* next = first; next != nullptr && can_become_free(next); next = block->behind) {
    const size_t held = block == nullptr ? 0 : block->size;
    if (!next->mapped) {
      if (held >= size) break;
      const size_t least = std::min(next->size, round_up(size - held, kPage));
      Block* mapped = map_front_locked(next, std::min(next->size, segment_size_for(size - held)), context);
      if (mapped == nullptr) mapped = map_front_locked(next, least, context);
      next = mapped;
      if (next == nullptr) {  // what is mapped so far is free memory, and may be returned
        block == nullptr ? release_if_empty_locked(first) : insert_free_locked(block);
        return nullptr;
      }
    } else {
      remove_free_locked(next);
    }
    block = block == nullptr ? next : merge_locked(block, next);
  }
  return block;
}

// The new segment as one block without memory; null: the driver has no addresses left.
Block* BlockAllocator::State::reserve_locked(MemoryPool& pool, Stream* stream) {
  if (!driver_info().can(MTIA_CAPABILITY_VIRTUAL_MEMORY)) return nullptr;
  const uint64_t total_bytes = runtime::memory_info(device).total_bytes;
  Block* block = new_segment_locked(&mtia_runtime_api::memory_reserve, round_up(total_bytes, kPage), /*small=*/false,
                                    pool, stream);
  if (block == nullptr) return nullptr;
  block->expandable = true;
  block->mapped = false;
  block->in_use = true;
  free_blocks_locked(pool, stream).expandable = block;
  return block;
}

// Gives the first `size` bytes of a block without memory some: they are a free block, in no list. Null: the device is
// full.
Block* BlockAllocator::State::map_front_locked(Block* block, size_t size, const TraceContext& context) {
  if (!has_space_for_locked(size)) return nullptr;
  const mtia_status status = runtime::driver().memory_map(device, block->address, size);
  if (status == MTIA_ERROR_OUT_OF_MEMORY) {
    refusal = runtime::driver().last_error_message();
    return nullptr;
  }
  runtime::check(status, &mtia_runtime_api::memory_map);
  if (size < block->size) cut_locked(block, size);
  block->mapped = true;
  block->in_use = false;
  block->free_since = num_frees;
  if (block->begins_range()) block->segment_context = context;
  increase(stats.reserved_bytes, block, size);
  // Between two mapped ranges it makes them one, beside one it lengthens it.
  const bool joins_behind = block->behind != nullptr && block->behind->mapped;
  if (block->begins_range() && !joins_behind) increase(stats.segment, block, 1);
  if (!block->begins_range() && joins_behind) decrease(stats.segment, block, 1);
  ++stats.num_device_alloc;
  record_locked(TraceAction::kSegmentMap, block->address, size, block->stream, block->pool->id, context);
  return block;
}

// Of a free block that is in no list, the whole pages, as a block of their own; the rest is free. Needs two blocks.
Block* BlockAllocator::State::detach_pages_locked(Block* block) noexcept {
  const size_t front = round_up(block->address, kPage) - block->address;
  Block* before = nullptr;
  if (front != 0) {
    before = block;
    block = cut_locked(block, front);
  }
  Block* behind = nullptr;
  if (const size_t pages = block->size / kPage * kPage; pages != block->size) behind = cut_locked(block, pages);
  block->in_use = true;  // so that no neighbour merges with it
  if (before != nullptr) insert_free_locked(before);
  if (behind != nullptr) insert_free_locked(behind);
  return block;
}

// The driver has taken the memory of a block from detach_pages_locked.
void BlockAllocator::State::unmapped_locked(Block* block) noexcept {
  const bool joins_behind = block->behind != nullptr && block->behind->mapped;
  if (block->begins_range() && !joins_behind) decrease(stats.segment, block, 1);
  if (!block->begins_range() && joins_behind) increase(stats.segment, block, 1);
  decrease(stats.reserved_bytes, block, block->size);
  ++stats.num_device_free;
  record_locked(TraceAction::kSegmentUnmap, block->address, block->size, block->stream, block->pool->id,
                block->segment_context);
  block->segment_context.reset();
  block->mapped = false;
  if (block->before != nullptr && !block->before->mapped) block = merge_locked(block->before, block);
  if (block->behind != nullptr && !block->behind->mapped) block = merge_locked(block, block->behind);
  release_if_empty_locked(block);
}

// Ends the segment if the block, which has no memory, is all of it. A driver that fails keeps the addresses.
void BlockAllocator::State::release_if_empty_locked(Block* block) noexcept {
  if (block->before != nullptr || block->behind != nullptr) return;
  runtime::driver().memory_release(device, block->address);
  free_blocks_locked(block).expandable = nullptr;
  --block->pool->num_segments;
  segments.erase(block);
  discard_block_locked(block);
}

}  // namespace torch_mtia::core
