#include "BlockAllocator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "AllocatorHistory.h"
#include "Event.h"
#include "FreeBlocks.h"
#include "SmallMutex.h"
#include "Stream.h"

namespace torch_mtia::core {
namespace {

// Requests up to kSmallRequest share segments of kSmallSegment, those below kLargeRequest segments of kLargeSegment;
// larger ones get their own, in steps of kSegmentRounding.
constexpr size_t kSmallRequest = size_t{1} << 20;
constexpr size_t kLargeRequest = size_t{10} << 20;
constexpr size_t kLargeSegment = size_t{20} << 20;
constexpr size_t kSegmentRounding = size_t{2} << 20;
// No device has that much; sizes below can be rounded without overflow.
constexpr size_t kNoDeviceHas = std::numeric_limits<size_t>::max() / 2;

constexpr size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr size_t segment_size_for(size_t size) {
  if (size <= kSmallRequest) return kSmallSegment;
  return size < kLargeRequest ? kLargeSegment : round_up(size, kSegmentRounding);
}

void increase(Stat& stat, size_t amount) {
  stat.current += static_cast<int64_t>(amount);
  stat.peak = std::max(stat.peak, stat.current);
  stat.allocated += static_cast<int64_t>(amount);
}

void decrease(Stat& stat, size_t amount) {
  stat.current -= static_cast<int64_t>(amount);
  stat.freed += static_cast<int64_t>(amount);
}

StatIndex stat_index(const Block* block) {
  return block->is_in_small_segment() ? kSmall : kLarge;
}

void increase(StatArray& stats, const Block* block, size_t amount) {
  increase(stats[kAll], amount);
  increase(stats[stat_index(block)], amount);
}

void decrease(StatArray& stats, const Block* block, size_t amount) {
  decrease(stats[kAll], amount);
  decrease(stats[stat_index(block)], amount);
}

template <typename Apply>
void for_each_stat(AllocatorStats& stats, Apply apply) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : *array) apply(stat);
  }
  apply(stats.oversize_allocations);
  apply(stats.oversize_segments);
}

// A freed block that a stream may still use, until the event is complete.
struct PendingFree {
  Event event;
  Block* block;
};

}  // namespace

mtia_device_ptr block_address(const Block* block) {
  return block->address;
}
size_t block_size(const Block* block) {
  return block->size;
}
size_t block_requested_size(const Block* block) {
  return block->requested;
}
Stream* block_stream(const Block* block) {
  return block->stream;
}

// Note [Locks of the allocator]
// `mutex` guards everything. It is held while calling the driver, but never for a call that waits for the device: a
// thread that frees needs it, and may be the one that lets the device go on. Who waits for the device to give segments
// back holds only `reclaim_mutex`, which no free takes; so several threads that are out of memory do it one after
// another, and the later ones find what the first gave back. Order: reclaim_mutex, mutex, the driver's own locks.
// Functions whose name ends in `_locked` need `mutex`.
struct BlockAllocator::State {
  State(int32_t device, OptionsSource options) : device(device), options(options) {}

  const int32_t device;
  const OptionsSource options;
  std::mutex reclaim_mutex;
  mutable SmallMutex mutex;
  AllocatorStats stats;
  std::set<Block*> segments;  // the first block of each
  MemoryPool default_pool;
  std::map<PoolId, std::unique_ptr<MemoryPool>> private_pools;
  std::unordered_map<Stream*, MemoryPool*> directed;  // streams whose allocations come from a private pool
  Stream* recent_stream = nullptr;  // and its free blocks in the default pool, of which nearly every call is
  FreeBlocks* recent = nullptr;
  double memory_fraction = 1;
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
    int open = 0;
    Block* freed = nullptr;  // a list: the blocks become free when the last window closes
  };
  std::unordered_map<Stream*, Window> windows;
  int num_open_windows = 0;

  // Null block: the device is full, or `may_collect` and the threshold asks for a collection first.
  struct Attempt {
    Block* block = nullptr;
    uint64_t garbage = 0;  // bytes to collect
  };
  Attempt try_allocate(size_t size, size_t requested, Stream* stream, TraceContext& context, bool may_collect);
  // Waits for the device and returns to the driver the free segments that `chosen` is true for.
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
  Block* take_segment_locked(size_t size, MemoryPool& pool, Stream* stream);
  bool is_oversize(const Block* block) const {
    return !block->is_in_small_segment() && block->size >= options().max_split_size;
  }
  void split_locked(Block* block, size_t size) noexcept;
  Block* merge_locked(Block* front, Block* back) noexcept;
  void count_free_locked(Block* block) noexcept;
  void release_locked(Block* block) noexcept;
  void merge_free_locked(Block* block) noexcept;
  void merge_parked_locked(FreeBlocks& free) noexcept;
  void merge_all_parked_locked() noexcept;
  void release_in_order_locked(Block* block) noexcept;
  void delay_release_locked(Block* block) noexcept;
  void release_completed_locked();
  std::vector<const Block*> segments_by_address_locked() const;
  std::vector<Block*> detach_free_segments_locked(const std::function<bool(const Block*)>& chosen);
  void record_locked(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
                     const TraceContext& context) noexcept {
    if (history.enabled()) history.add(action, address, size, stream, pool, context);
  }
};

std::vector<const Block*> BlockAllocator::State::segments_by_address_locked() const {
  std::vector<const Block*> sorted(segments.begin(), segments.end());
  std::sort(sorted.begin(), sorted.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  return sorted;
}

// Of the memory that the driver has for the device.
uint64_t BlockAllocator::State::memory_limit() const {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  runtime::check(runtime::driver().memory_info(device, &free_bytes, &total_bytes));
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
    block = free.large.best_fit(size, oversize ? size + now.max_non_split_rounding : now.max_split_size);
  }
  if (block != nullptr) remove_free_locked(block);
  return block;
}

// A new segment as one block; null: the device is full.
Block* BlockAllocator::State::take_segment_locked(size_t size, MemoryPool& pool, Stream* stream) {
  const size_t segment_size = segment_size_for(size);
  const auto held = static_cast<uint64_t>(stats.reserved_bytes[kAll].current);
  if (memory_fraction < 1 && held + segment_size > memory_limit()) return nullptr;
  Block* block = new_block_locked();
  const auto segment = segments.insert(block).first;  // before the segment exists, because it can throw
  mtia_device_ptr address = 0;
  const mtia_status status = runtime::driver().memory_allocate(device, segment_size, &address);
  if (status != MTIA_SUCCESS) {
    segments.erase(segment);
    discard_block_locked(block);
    if (status == MTIA_ERROR_OUT_OF_MEMORY) return nullptr;
    runtime::check(status);
  }
  block->address = address;
  block->size = segment_size;
  block->segment_size = segment_size;
  block->stream = stream;
  block->pool = &pool;
  block->before = nullptr;
  block->behind = nullptr;
  increase(stats.segment, block, 1);
  increase(stats.reserved_bytes, block, segment_size);
  if (is_oversize(block)) increase(stats.oversize_segments, 1);
  ++pool.num_segments;
  ++stats.num_device_alloc;
  return block;
}

// Cuts what `size` does not need off a block that is in no list.
void BlockAllocator::State::split_locked(Block* block, size_t size) noexcept {
  if (block->size == size) return;
  Block* rest = new_block_locked();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->segment_size = block->segment_size;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->in_use = false;
  rest->free_since = num_frees;
  rest->before = block;
  rest->behind = block->behind;
  if (rest->behind != nullptr) rest->behind->before = rest;
  block->behind = rest;
  block->size = size;
  insert_free_locked(rest);
}

// Both are in no list.
Block* BlockAllocator::State::merge_locked(Block* front, Block* back) noexcept {
  front->size += back->size;
  front->free_since = std::max(front->free_since, back->free_since);
  front->behind = back->behind;
  if (front->behind != nullptr) front->behind->before = front;
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
  if (block->is_in_small_segment()) {
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
  if (num_open_windows > 0) {
    const auto window = windows.find(block->stream);
    if (window != windows.end() && window->second.open > 0) {
      block->next_free = std::exchange(window->second.freed, block);
      return;
    }
  }
  release_locked(block);
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
      if (unused_events.empty()) unused_events.emplace_back(/*enable_timing=*/false);
      unused_events.back().record(*stream);
      if (unused_events.back().query()) continue;  // nothing to wait for
      pending[stream].push_back({std::move(unused_events.back()), block});
      unused_events.pop_back();
      ++num_pending;
      ++block->pending_events;
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

std::vector<Block*> BlockAllocator::State::detach_free_segments_locked(
    const std::function<bool(const Block*)>& chosen) {
  merge_all_parked_locked();
  std::vector<Block*> detached;
  for (Block* block : segments) {
    const bool free = !block->in_use && block->is_whole_segment() && block->stream->graph() == nullptr;
    if (free && chosen(block)) detached.push_back(block);
  }
  for (Block* block : detached) remove_free_locked(block);
  return detached;
}

// How many bytes too many would be held with a segment more, by the threshold; 0 where there is none.
uint64_t BlockAllocator::State::garbage_locked(size_t size) const {
  const double threshold = options().garbage_collection_threshold;
  if (threshold <= 0) return 0;
  const auto wanted = static_cast<uint64_t>(stats.reserved_bytes[kAll].current) + segment_size_for(size);
  const auto allowed = static_cast<uint64_t>(threshold * static_cast<double>(memory_limit()));
  return wanted > allowed ? wanted - allowed : 0;
}

BlockAllocator::State::Attempt BlockAllocator::State::try_allocate(size_t size, size_t requested, Stream* stream,
                                                                   TraceContext& context, bool may_collect) {
  const std::lock_guard lock(mutex);
  release_completed_locked();
  prepare_blocks_locked(2);  // a segment and the rest of a block
  MemoryPool& pool = pool_for_locked(stream);
  Block* block = take_free_locked(size, pool, stream);
  if (block == nullptr) {
    if (may_collect) {
      if (const uint64_t garbage = garbage_locked(size)) return {nullptr, garbage};
    }
    block = take_segment_locked(size, pool, stream);
    if (block == nullptr) return {};
    block->segment_context = context;
    record_locked(TraceAction::kSegmentAlloc, block->address, block->size, stream, pool.id, context);
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

void BlockAllocator::State::reclaim(const std::function<bool(const Block*)>& chosen) {
  const std::lock_guard reclaiming(reclaim_mutex);
  std::vector<Stream*> busy;
  {
    const std::lock_guard lock(mutex);
    ++stats.num_sync_all_streams;
    for (const auto& [stream, frees] : pending) {
      if (!frees.empty() && stream->graph() == nullptr) busy.push_back(stream);
    }
  }
  for (Stream* stream : busy) stream->wait_until_idle();

  std::vector<Block*> detached;
  {
    const std::lock_guard lock(mutex);
    release_completed_locked();
    detached = detach_free_segments_locked(chosen);
  }
  // Out of reach of other threads now; what was submitted for them before may still run.
  size_t returned = 0;
  std::exception_ptr failure;
  try {
    std::set<Stream*> streams;
    for (const Block* block : detached) streams.insert(block->stream);
    for (Stream* stream : streams) stream->wait_until_idle();
    for (const Block* block : detached) {
      runtime::check(runtime::driver().memory_free(device, block->address));
      ++returned;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < detached.size(); ++i) {
    Block* block = detached[i];
    if (i >= returned) {
      insert_free_locked(block);
      continue;
    }
    decrease(stats.segment, block, 1);
    decrease(stats.reserved_bytes, block, block->size);
    if (is_oversize(block)) decrease(stats.oversize_segments, 1);
    --block->pool->num_segments;
    ++stats.num_device_free;
    record_locked(TraceAction::kSegmentFree, block->address, block->size, block->stream, block->pool->id,
                  block->segment_context);
    block->segment_context.reset();
    segments.erase(block);
    discard_block_locked(block);
  }
  discard_unused_pools_locked();
  if (failure) std::rethrow_exception(failure);
}

void BlockAllocator::State::reclaim_all() {
  reclaim([](const Block* block) { return block->pool->may_return_segments(); });
}

// Returns the segments that have been free for longest, until `bytes` are given back.
void BlockAllocator::State::collect_garbage(uint64_t bytes) {
  std::set<const Block*> garbage;
  {
    const std::lock_guard lock(mutex);
    release_completed_locked();
    merge_all_parked_locked();
    std::vector<const Block*> free;
    for (const Block* block : segments) {
      if (!block->in_use && block->is_whole_segment() && block->pool->may_return_segments()) free.push_back(block);
    }
    std::sort(free.begin(), free.end(), [](const Block* a, const Block* b) { return a->free_since < b->free_since; });
    uint64_t collected = 0;
    for (const Block* block : free) {
      if (collected >= bytes) break;
      garbage.insert(block);
      collected += block->size;
    }
  }
  if (!garbage.empty()) reclaim([&garbage](const Block* block) { return garbage.contains(block); });
}

BlockAllocator::BlockAllocator(int32_t device, OptionsSource options)
    : state_(std::make_unique<State>(device, options).release()) {}

BlockAllocator* BlockAllocator::create(int32_t device, OptionsSource options) {
  return std::unique_ptr<BlockAllocator>(new BlockAllocator(device, options)).release();  // leaked, see the class
}

Block* BlockAllocator::allocate(size_t size, Stream* stream) {
  TraceContext context = state_->history.context_of_alloc();
  if (size <= kNoDeviceHas) {
    const size_t rounded = round_up(std::max<size_t>(size, 1), kBlockRounding);
    const auto attempt = [&](bool may_collect) {
      return state_->try_allocate(rounded, size, stream, context, may_collect);
    };
    auto result = attempt(/*may_collect=*/true);
    if (result.garbage > 0) {
      state_->collect_garbage(result.garbage);
      result = attempt(/*may_collect=*/false);
    }
    if (result.block != nullptr) return result.block;
    state_->reclaim_all();
    result = attempt(/*may_collect=*/false);
    const std::lock_guard lock(state_->mutex);
    ++state_->stats.num_alloc_retries;
    if (result.block != nullptr) return result.block;
  }
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  runtime::check(runtime::driver().memory_info(state_->device, &free_bytes, &total_bytes));
  const std::lock_guard lock(state_->mutex);
  ++state_->stats.num_ooms;
  state_->record_locked(TraceAction::kOutOfMemory, free_bytes, size, stream, state_->pool_for_locked(stream).id,
                        context);
  throw OutOfDeviceMemory(size, free_bytes, total_bytes);
}

void BlockAllocator::free(Block* block) noexcept {
  const TraceContext context = state_->history.context_of_free();
  const std::lock_guard lock(state_->mutex);
  state_->count_free_locked(block);
  state_->record_locked(TraceAction::kFreeRequested, block->address, block->requested, block->stream, block->pool->id,
                        context);
  if (!block->other_streams.empty()) state_->delay_release_locked(block);
  if (block->pending_events == 0) state_->release_in_order_locked(block);
}

void BlockAllocator::free_while_running(Block* block) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->count_free_locked(block);
  state_->record_locked(TraceAction::kFreeRequested, block->address, block->requested, block->stream, block->pool->id,
                        nullptr);
  state_->release_locked(block);
}

void BlockAllocator::open_window(Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  ++state_->windows[stream].open;
  ++state_->num_open_windows;
}

void BlockAllocator::close_window(Stream* stream) noexcept {
  const std::lock_guard lock(state_->mutex);
  --state_->num_open_windows;
  auto& window = state_->windows.find(stream)->second;
  if (--window.open > 0) return;
  Block* block = std::exchange(window.freed, nullptr);
  while (block != nullptr) {
    Block* next = block->next_free;
    state_->release_locked(block);
    block = next;
  }
}

void BlockAllocator::record_stream(Block* block, Stream* stream) {
  if (stream == block->stream) return;
  const std::lock_guard lock(state_->mutex);
  auto& streams = block->other_streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void BlockAllocator::empty_cache() {
  state_->reclaim_all();
}

void BlockAllocator::empty_cache(PoolId pool) {
  state_->reclaim([pool](const Block* block) { return block->pool->id == pool && block->pool->may_return_segments(); });
}

void BlockAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  ++state_->pool_locked(pool).users;
}

void BlockAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->private_pools.find(pool);
  if (found == state_->private_pools.end() || found->second->users == 0) {
    throw std::invalid_argument("the memory pool (" + std::to_string(pool.first) + ", " + std::to_string(pool.second) +
                                ") is not in use");
  }
  --found->second->users;
  state_->discard_unused_pools_locked();
}

void BlockAllocator::direct_to_pool(Stream* stream, PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  state_->directed[stream] = &state_->pool_locked(pool);
}

void BlockAllocator::direct_to_default_pool(Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  state_->directed.erase(stream);
  if (auto used = state_->used_in_capture.extract(stream)) {
    for (Block* block : used.mapped()) {
      if (--block->pending_events == 0) state_->release_in_order_locked(block);
    }
  }
}

void BlockAllocator::set_memory_fraction(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) {
    throw std::invalid_argument("a memory fraction is between 0 and 1, not " + std::to_string(fraction));
  }
  const std::lock_guard lock(state_->mutex);
  state_->memory_fraction = fraction;
}

double BlockAllocator::memory_fraction() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory_fraction;
}

void BlockAllocator::record_history(HistoryOptions options) {
  state_->history.start(std::move(options));
}

std::vector<TraceEntry> BlockAllocator::history() const {
  return state_->history.entries();
}

std::vector<SegmentSnapshot> BlockAllocator::snapshot() {
  const std::lock_guard lock(state_->mutex);
  state_->record_locked(TraceAction::kSnapshot, 0, 0, nullptr, {0, 0}, nullptr);
  state_->merge_all_parked_locked();
  std::vector<SegmentSnapshot> result;
  for (const Block* first : state_->segments_by_address_locked()) {
    SegmentSnapshot segment{first->address,
                            first->segment_size,
                            first->stream,
                            first->pool->id,
                            !first->is_in_small_segment(),
                            first->segment_context,
                            {}};
    for (const Block* block = first; block != nullptr; block = block->behind) {
      segment.blocks.push_back(
          {block->address, block->size, block->requested, block->allocated, block->in_use, block->context});
    }
    result.push_back(std::move(segment));
  }
  return result;
}

std::vector<mtia_span> BlockAllocator::live_ranges() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<mtia_span> result;
  for (const Block* first : state_->segments_by_address_locked()) {
    for (const Block* block = first; block != nullptr; block = block->behind) {
      if (block->allocated) result.push_back({block->address, block->requested});
    }
  }
  return result;
}

AllocatorStats BlockAllocator::stats() const {
  const std::lock_guard lock(state_->mutex);
  state_->merge_all_parked_locked();
  return state_->stats;
}

void BlockAllocator::reset_peak_stats() {
  const std::lock_guard lock(state_->mutex);
  for_each_stat(state_->stats, [](Stat& stat) { stat.peak = stat.current; });
}

void BlockAllocator::reset_accumulated_stats() {
  const std::lock_guard lock(state_->mutex);
  for_each_stat(state_->stats, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  state_->stats.num_alloc_retries = 0;
  state_->stats.num_ooms = 0;
  state_->stats.num_sync_all_streams = 0;
  state_->stats.num_device_alloc = 0;
  state_->stats.num_device_free = 0;
}

}  // namespace torch_mtia::core
