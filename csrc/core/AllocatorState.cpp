// Pools, segments and blocks: how blocks are found, cut, merged and freed.
#include "AllocatorState.h"

#include <algorithm>
#include <utility>

#include "RunningWork.h"

namespace torch_mtia::core {

std::vector<const Block*> BlockAllocator::State::segments_by_address_locked() const {
  std::vector<const Block*> sorted(segments.begin(), segments.end());
  std::sort(sorted.begin(), sorted.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  return sorted;
}

// Of the memory that the driver has for the device.
uint64_t BlockAllocator::State::memory_limit() const {
  const uint64_t total_bytes = runtime::memory_info(device).total_bytes;
  return memory_fraction >= 1 ? total_bytes : static_cast<uint64_t>(memory_fraction * static_cast<double>(total_bytes));
}

MemoryPool& BlockAllocator::State::pool_locked(PoolId id) {
  if (id == PoolId{0, 0}) return default_pool;
  auto& pool = private_pools[id];
  if (pool == nullptr) {
    pool = std::make_unique<MemoryPool>();
    pool->id = id;
  }
  return *pool;
}

MemoryPool& BlockAllocator::State::pool_for_locked(Stream* stream) {
  if (directed.empty()) return default_pool;
  const auto found = directed.find(stream);
  return found == directed.end() ? default_pool : *found->second;
}

void BlockAllocator::State::discard_unused_pools_locked() noexcept {
  std::erase_if(private_pools, [this](const auto& entry) {
    const MemoryPool* pool = entry.second.get();
    const auto leads_here = [pool](const auto& direction) { return direction.second == pool; };
    return pool->users == 0 && pool->num_segments == 0 && std::none_of(directed.begin(), directed.end(), leads_here);
  });
}

FreeBlocks& BlockAllocator::State::free_blocks_locked(MemoryPool& pool, Stream* stream) {
  if (&pool == &default_pool && stream == recent_stream) return *recent;
  auto& found = pool.free_blocks[stream];
  if (found == nullptr) found = std::make_unique<FreeBlocks>();
  if (&pool == &default_pool) {
    recent_stream = stream;
    recent = found.get();
  }
  return *found;
}

// So that what comes between taking a block off its list and handing it out cannot throw.
void BlockAllocator::State::prepare_blocks_locked(size_t count) {
  while (num_unused_blocks < count) {
    Block* block = &blocks.emplace_back();
    LargeFreeBlocks::prepare(block);
    discard_block_locked(block);
  }
}

Block* BlockAllocator::State::new_block_locked() noexcept {
  Block* block = unused_blocks;
  unused_blocks = block->next_free;
  --num_unused_blocks;
  return block;
}

void BlockAllocator::State::discard_block_locked(Block* block) noexcept {
  block->next_free = unused_blocks;
  unused_blocks = block;
  ++num_unused_blocks;
}

void BlockAllocator::State::insert_free_locked(Block* block) noexcept {
  free_blocks_locked(block).insert(block);
  if (block->is_whole_segment()) return;
  increase(stats.inactive_split, block, 1);
  increase(stats.inactive_split_bytes, block, block->size);
}

void BlockAllocator::State::remove_free_locked(Block* block) noexcept {
  free_blocks_locked(block).remove(block);
  if (block->is_whole_segment()) return;
  decrease(stats.inactive_split, block, 1);
  decrease(stats.inactive_split_bytes, block, block->size);
}

// The best fit; null: the stream has no free block that is large enough, or only one that would be wasted on it.
Block* BlockAllocator::State::take_free_locked(size_t size, MemoryPool& pool, Stream* stream) {
  FreeBlocks& free = free_blocks_locked(pool, stream);
  Block* block = nullptr;
  if (size <= kSmallRequest) {
    block = free.parked.exact_fit(size);
    if (block != nullptr) {
      free.parked.remove(block);
      return block;
    }
    merge_parked_locked(free);
    block = free.small.best_fit(size);
  } else {
    const AllocatorOptions now = options();
    const bool oversize = size >= now.max_split_size;
    const size_t limit = now.expandable_segments ? kNoDeviceHas
                         : oversize              ? size + now.max_non_split_rounding
                                                 : now.max_split_size;
    block = free.large.best_fit(size, limit);
  }
  if (block != nullptr) remove_free_locked(block);
  return block;
}

// Whether the memory fraction allows for `size` bytes more.
bool BlockAllocator::State::has_space_for_locked(size_t size) {
  if (memory_fraction >= 1 || static_cast<uint64_t>(stats.reserved_bytes[kAll].current) + size <= memory_limit()) {
    return true;
  }
  refusal = "the process may hold no more of the device's memory, by set_per_process_memory_fraction";
  return false;
}

// A new segment as one block, whose addresses come from `take`, a function of the driver; null: it has no more.
Block* BlockAllocator::State::new_segment_locked(Take take, size_t size, bool small, MemoryPool& pool, Stream* stream) {
  Block* block = new_block_locked();
  const auto segment = segments.insert(block).first;  // before the segment exists, because it can throw
  mtia_device_ptr address = 0;
  const mtia_status status = (runtime::driver().*take)(device, size, &address);
  if (status != MTIA_SUCCESS) {
    segments.erase(segment);
    discard_block_locked(block);
    if (status != MTIA_ERROR_OUT_OF_MEMORY) runtime::check(status, take);
    refusal = runtime::driver().last_error_message();
    return nullptr;
  }
  if (address == 0 || address % kSegmentAlignment != 0) {
    segments.erase(segment);
    discard_block_locked(block);
    runtime::reject(take, "gave memory at address " + std::to_string(address));
  }
  block->address = address;
  block->size = size;
  block->is_in_small_segment = small;
  block->stream = stream;
  block->pool = &pool;
  block->expandable = false;
  block->mapped = true;
  block->in_use = false;
  block->before = nullptr;
  block->behind = nullptr;
  ++pool.num_segments;
  return block;
}

// Null: the device is full.
Block* BlockAllocator::State::take_segment_locked(size_t size, MemoryPool& pool, Stream* stream) {
  const bool small = size <= kSmallRequest;
  const auto take = [&](size_t segment_size) {
    if (!has_space_for_locked(segment_size)) return static_cast<Block*>(nullptr);
    return new_segment_locked(&mtia_runtime_api::memory_allocate, segment_size, small, pool, stream);
  };
  Block* block = take(segment_size_for(size));
  // A segment to share is more than the request needs.
  const size_t least = round_up(size, kSegmentRounding);
  if (block == nullptr && least < segment_size_for(size)) block = take(least);
  if (block == nullptr) return nullptr;
  increase(stats.segment, block, 1);
  increase(stats.reserved_bytes, block, block->size);
  if (is_oversize(block)) increase(stats.oversize_segments, 1);
  ++stats.num_device_alloc;
  return block;
}

// Cuts a block that is in no list in two, and returns the second, which is in no list either.
Block* BlockAllocator::State::cut_locked(Block* block, size_t size) noexcept {
  Block* rest = new_block_locked();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->is_in_small_segment = block->is_in_small_segment;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->expandable = block->expandable;
  rest->mapped = block->mapped;
  rest->in_use = block->in_use;
  rest->free_since = block->free_since;
  rest->before = block;
  rest->behind = block->behind;
  if (rest->behind != nullptr) rest->behind->before = rest;
  block->behind = rest;
  block->size = size;
  return rest;
}

// Cuts what `size` does not need off a free block that is in no list.
void BlockAllocator::State::split_locked(Block* block, size_t size) noexcept {
  if (block->size == size) return;
  Block* rest = cut_locked(block, size);
  rest->free_since = num_frees;
  insert_free_locked(rest);
}

// Both are in no list.
Block* BlockAllocator::State::merge_locked(Block* front, Block* back) noexcept {
  front->size += back->size;
  front->free_since = std::max(front->free_since, back->free_since);
  front->behind = back->behind;
  if (front->behind != nullptr) front->behind->before = front;
  back->segment_context.reset();
  discard_block_locked(back);
  return front;
}

// The block is free: other streams are done with it, and what its own stream still does comes before its next use.
void BlockAllocator::State::release_locked(Block* block) noexcept {
  decrease(stats.active, block, 1);
  decrease(stats.active_bytes, block, block->size);
  decrease(stats.requested_bytes, block, block->requested);
  block->other_streams.clear();
  block->free_since = ++num_frees;
  record_locked(TraceAction::kFreeCompleted, block->address, block->requested, block->stream, block->pool->id,
                block->context);
  block->context.reset();
  if (block->is_in_small_segment) {
    free_blocks_locked(block).parked.insert(block);
  } else {
    merge_free_locked(block);
  }
}

void BlockAllocator::State::merge_free_locked(Block* block) noexcept {
  block->in_use = false;
  if (Block* before = block->before; before != nullptr && !before->in_use) {
    remove_free_locked(before);
    block = merge_locked(before, block);
  }
  if (Block* behind = block->behind; behind != nullptr && !behind->in_use) {
    remove_free_locked(behind);
    block = merge_locked(block, behind);
  }
  insert_free_locked(block);
}

void BlockAllocator::State::merge_parked_locked(FreeBlocks& free) noexcept {
  while (Block* block = free.parked.best_fit(kBlockRounding)) {
    free.parked.remove(block);
    merge_free_locked(block);
  }
}

void BlockAllocator::State::merge_all_parked_locked() noexcept {
  const auto merge = [this](MemoryPool& pool) {
    for (const auto& [stream, free] : pool.free_blocks) merge_parked_locked(*free);
  };
  merge(default_pool);
  for (const auto& [id, pool] : private_pools) merge(*pool);
}

void BlockAllocator::State::count_free_locked(Block* block) noexcept {
  decrease(stats.allocation, block, 1);
  decrease(stats.allocated_bytes, block, block->size);
  if (is_oversize(block)) decrease(stats.oversize_allocations, 1);
  block->allocated = false;
}

// As release, but behind the stream's open windows.
void BlockAllocator::State::release_in_order_locked(Block* block) noexcept {
  if (auto* open = windows_locked(block->stream)) {
    block->next_free = std::exchange(open->back().freed, block);
    return;
  }
  release_locked(block);
}

// Null: none is open.
std::deque<BlockAllocator::State::Window>* BlockAllocator::State::windows_locked(Stream* stream) noexcept {
  if (num_windows == 0) return nullptr;
  const auto found = windows.find(stream);
  return found == windows.end() || found->second.empty() ? nullptr : &found->second;
}

// A block that is freed while a window is open becomes free when this window and those before it are closed: work that
// uses the block may be behind each of their items. Windows that open later are of items behind that work, so a stream
// of items that overlap does not hold the block back for ever.
void BlockAllocator::State::close_window_locked(Stream* stream, WindowId id) noexcept {
  std::deque<Window>& open = windows.find(stream)->second;
  std::find_if(open.begin(), open.end(), [id](const Window& window) { return window.id == id; })->closed = true;
  while (!open.empty() && open.front().closed) {
    Window window = std::move(open.front());
    open.pop_front();
    --num_windows;
    while (window.freed != nullptr) release_locked(std::exchange(window.freed, window.freed->next_free));
    for (Block* block : window.used) wait_for_late_use_locked(block, stream);
  }
}

// Marks where the stream is now: the block is not released before it has got there.
void BlockAllocator::State::wait_for_use_locked(Block* block, Stream* stream) {
  if (unused_events.empty()) unused_events.emplace_back(/*enable_timing=*/false);
  unused_events.back().record(*stream);
  if (unused_events.back().query()) return;  // nothing to wait for
  pending[stream].push_back({std::move(unused_events.back()), block});
  unused_events.pop_back();
  ++num_pending;
  ++block->pending_events;
}

// The same for a block that has been freed already, and has waited for the time when the stream can be marked.
void BlockAllocator::State::wait_for_late_use_locked(Block* block, Stream* stream) noexcept {
  try {
    if (stream->graph() != nullptr) return used_in_capture[stream].push_back(block);
    wait_for_use_locked(block, stream);
  } catch (...) {
    return;  // as in delay_release_locked
  }
  if (--block->pending_events == 0) release_in_order_locked(block);
}

// Marks where the other streams are now; the block is released when they have got there.
void BlockAllocator::State::delay_release_locked(Block* block) noexcept {
  try {
    for (Stream* stream : block->other_streams) {
      if (stream->graph() != nullptr) {  // an event would be part of the graph
        used_in_capture[stream].push_back(block);
        ++block->pending_events;
        continue;
      }
      // Recorded inside an item of the stream, an event stands for that item, not for what is queued behind it.
      if (auto* open = windows_locked(stream); open != nullptr && RunningWork::on_this_thread(stream)) {
        open->back().used.push_back(block);
        ++block->pending_events;
        continue;
      }
      wait_for_use_locked(block, stream);
    }
  } catch (...) {
    // Nobody will know when that stream is done (the device is lost, this is a forked child, or the host is out of
    // memory). One event too many keeps the block from ever being used again.
    ++block->pending_events;
  }
}

void BlockAllocator::State::release_completed_locked() {
  if (num_pending == 0) return;
  for (auto& [stream, frees] : pending) {
    while (!frees.empty() && frees.front().event.query()) {
      Block* block = frees.front().block;
      unused_events.push_back(std::move(frees.front().event));
      frees.pop_front();
      --num_pending;
      if (--block->pending_events == 0) release_in_order_locked(block);
    }
  }
}

BlockAllocator::State::Attempt BlockAllocator::State::try_allocate(size_t size, size_t requested, Stream* stream,
                                                                   TraceContext& context, bool may_collect) {
  const std::lock_guard lock(mutex);
  release_completed_locked();
  prepare_blocks_locked(3);  // a segment, the part of it that is mapped, and the rest of a block
  MemoryPool& pool = pool_for_locked(stream);
  Block* block = take_free_locked(size, pool, stream);
  if (block == nullptr) {
    if (may_collect) {
      if (const uint64_t garbage = garbage_locked(size)) return {nullptr, garbage};
    }
    block = take_expandable_locked(size, pool, stream, context);
    if (block == nullptr) {
      block = take_segment_locked(size, pool, stream);
      if (block == nullptr) return {};
      block->segment_context = context;
      record_locked(TraceAction::kSegmentAlloc, block->address, block->size, stream, pool.id, context);
    }
  }
  if (!is_oversize(block)) split_locked(block, size);
  block->in_use = true;
  block->allocated = true;
  block->requested = requested;
  increase(stats.allocation, block, 1);
  increase(stats.active, block, 1);
  increase(stats.allocated_bytes, block, block->size);
  increase(stats.active_bytes, block, block->size);
  increase(stats.requested_bytes, block, requested);
  if (is_oversize(block)) increase(stats.oversize_allocations, 1);
  record_locked(TraceAction::kAlloc, block->address, requested, stream, pool.id, context);
  block->context = std::move(context);
  return {block};
}

}  // namespace torch_mtia::core
