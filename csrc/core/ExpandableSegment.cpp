#include "ExpandableSegment.h"

#include <algorithm>

#include "../runtime/loader.h"
#include "DriverInfo.h"
#include "Segments.h"

namespace torch_mtia::core {
namespace {

// What can be mapped: multiples of it.
constexpr size_t kPage = kSegmentRounding;

bool can_become_free(const Block* block) {
  return !block->mapped || !block->in_use;
}

}  // namespace

Block* ExpandableSegment::take(Segments& segments, size_t size, MemoryPool& pool, Stream* stream,
                               const TraceContext& context) {
  if (first_ == nullptr) first_ = reserve(segments, pool, stream);
  Block* first = first_;
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
  // What is mapped so far is free memory, and may be returned.
  const auto give_up = [&] { block == nullptr ? release_if_empty(segments, first) : segments.insert_free(block); };
  try {
    for (Block* next = first; next != nullptr && can_become_free(next); next = block->behind) {
      const size_t held = block == nullptr ? 0 : block->size;
      if (!next->mapped) {
        if (held >= size) break;
        const size_t least = std::min(next->size, round_up(size - held, kPage));
        Block* mapped = map_front(segments, next, std::min(next->size, segment_size_for(size - held)), context);
        if (mapped == nullptr) mapped = map_front(segments, next, least, context);
        if (mapped == nullptr) {
          give_up();
          return nullptr;
        }
        next = mapped;
      } else {
        segments.remove_free(next);
      }
      block = block == nullptr ? next : segments.merge(block, next);
    }
  } catch (...) {
    give_up();
    throw;
  }
  return block;
}

// The new segment as one block without memory; null: the driver has no addresses left.
Block* ExpandableSegment::reserve(Segments& segments, MemoryPool& pool, Stream* stream) {
  if (!driver_info().can(MTIA_CAPABILITY_VIRTUAL_MEMORY)) return nullptr;
  const uint64_t total_bytes = runtime::memory_info(segments.device_).total_bytes;
  Block* block = segments.new_segment(&mtia_runtime_api::memory_reserve, round_up(total_bytes, kPage), /*small=*/false,
                                      pool, stream);
  if (block == nullptr) return nullptr;
  block->expandable = true;
  block->mapped = false;
  block->in_use = true;
  return block;
}

// Gives the first `size` bytes of a block without memory some: they are a free block, in no list. Null: the device is
// full.
Block* ExpandableSegment::map_front(Segments& segments, Block* block, size_t size, const TraceContext& context) {
  if (!segments.has_space_for(size)) return nullptr;
  const mtia_status status = runtime::driver().memory_map(segments.device_, block->address, size);
  if (status == MTIA_ERROR_OUT_OF_MEMORY) {
    segments.refusal_ = runtime::driver().last_error_message();
    return nullptr;
  }
  runtime::check(status, &mtia_runtime_api::memory_map);
  if (size < block->size) segments.cut(block, size);
  block->mapped = true;
  block->in_use = false;
  block->free_since = segments.num_frees_;
  if (block->begins_range()) block->segment_context = context;
  increase(segments.stats_.reserved_bytes, block, size);
  // Between two mapped ranges it makes them one, beside one it lengthens it.
  const bool joins_behind = block->behind != nullptr && block->behind->mapped;
  if (block->begins_range() && !joins_behind) increase(segments.stats_.segment, block, 1);
  if (!block->begins_range() && joins_behind) decrease(segments.stats_.segment, block, 1);
  ++segments.stats_.num_device_alloc;
  segments.record(TraceAction::kSegmentMap, block->address, size, block->stream, block->pool->id, context);
  return block;
}

Block* ExpandableSegment::detach_pages(Segments& segments, Block* block) noexcept {
  const size_t front = round_up(block->address, kPage) - block->address;
  Block* before = nullptr;
  if (front != 0) {
    before = block;
    block = segments.cut(block, front);
  }
  Block* behind = nullptr;
  if (const size_t pages = block->size / kPage * kPage; pages != block->size) behind = segments.cut(block, pages);
  block->in_use = true;  // so that no neighbour merges with it
  if (before != nullptr) segments.insert_free(before);
  if (behind != nullptr) segments.insert_free(behind);
  return block;
}

void ExpandableSegment::unmapped(Segments& segments, Block* block) noexcept {
  const bool joins_behind = block->behind != nullptr && block->behind->mapped;
  if (block->begins_range() && !joins_behind) decrease(segments.stats_.segment, block, 1);
  if (!block->begins_range() && joins_behind) increase(segments.stats_.segment, block, 1);
  decrease(segments.stats_.reserved_bytes, block, block->size);
  ++segments.stats_.num_device_free;
  segments.record(TraceAction::kSegmentUnmap, block->address, block->size, block->stream, block->pool->id,
                  block->segment_context);
  block->segment_context.reset();
  block->mapped = false;
  if (block->before != nullptr && !block->before->mapped) block = segments.merge(block->before, block);
  if (block->behind != nullptr && !block->behind->mapped) block = segments.merge(block, block->behind);
  release_if_empty(segments, block);
}

// Ends the segment if the block, which has no memory, is all of it. A driver that fails keeps the addresses.
void ExpandableSegment::release_if_empty(Segments& segments, Block* block) noexcept {
  if (block->before != nullptr || block->behind != nullptr) return;
  runtime::driver().memory_release(segments.device_, block->address);
  first_ = nullptr;
  segments.end_segment(block);
}

}  // namespace torch_mtia::core
