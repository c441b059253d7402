#include "BlockAllocator.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>

#include "../runtime/forks.h"
#include "../runtime/loader.h"
#include "AllocatorHistory.h"
#include "DeferredFrees.h"
#include "Graph.h"
#include "Hooks.h"
#include "Poison.h"
#include "Segments.h"
#include "SmallMutex.h"
#include "Stream.h"
#include "Waits.h"

namespace torch_mtia::core {
namespace {

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

BlockInfo info_of(const Block* block) {
  return {block->address, block->size, block->requested, block->stream, block->captures_before, block->tag};
}

}  // namespace

// Note [Locks of the allocator]
// `mutex` guards everything but the history. It is held while calling the driver, but never for a call that waits for
// the device: a thread that frees needs it, and the device may depend on that thread. A thread that waits for the
// device in order to return segments holds no lock at all, not even the interpreter's: the work that it waits for may
// allocate. Order: mutex, the history's lock, the driver's own locks. Pools, Segments, Windows and PendingFrees have no
// lock of their own: their functions are called with `mutex`, as are those of State whose name ends in `_locked`.
struct BlockAllocator::State {
  State(int32_t device, OptionsSource options)
      : device(device), poisons(runtime::poison()), segments(device, options, pools, history) {}

  const int32_t device;
  const bool poisons;  // see Note [Poison]
  mutable SmallMutex mutex;
  AllocatorHistory history;
  Pools pools;
  Segments segments;
  Windows windows;
  PendingFrees pending{windows};

  // BlockAllocator::allocate, with a fast path for small blocks.
  Block* allocate_quickly(size_t size, Stream* stream);
  Block* allocate(size_t size, Stream* stream);
  // No other stream uses the block; open windows of its own stream defer it.
  void release_locked(Block* block) noexcept {
    if (poisons) [[unlikely]]
      poison(*block, Poison::kFreed);
    if (!windows.defer(block)) segments.release(block);
  }
  void release_completed_locked() {
    pending.take_completed([this](Block* block) { release_locked(block); });
  }
  // Before a free, without a lock: the observer may need that of the interpreter.
  void report_free(Observer& observer, mtia_device_ptr address) noexcept;
  // `stream`, which uses the freed block, can be marked now.
  void mark_late_locked(Block* block, Stream* stream) noexcept {
    if (pending.mark_late(block, stream)) release_locked(block);
  }

  // Returns the chosen free segments to the driver, after waiting for the device. Running work does not wait, and
  // returns those that no work uses.
  void reclaim(const Segments::Choice& chosen);
  void reclaim_all();
  void collect_garbage(uint64_t bytes);
};

// Memory for a request ------------------------------------------------------------------------------------------------

Block* BlockAllocator::State::allocate_quickly(size_t size, Stream* stream) {
  if (size <= kSmallRequest && !history.enabled()) [[likely]] {
    const std::lock_guard lock(mutex);
    release_completed_locked();
    Block* block = segments.allocate_parked(round_up(std::max<size_t>(size, 1), kBlockRounding), size, stream);
    if (block != nullptr) [[likely]]
      return block;
  }
  return allocate(size, stream);
}

Block* BlockAllocator::State::allocate(size_t size, Stream* stream) {
  TraceContext context = history.context_of_alloc();
  if (size <= kNoDeviceHas) {
    const size_t rounded = round_up(std::max<size_t>(size, 1), kBlockRounding);
    const auto attempt = [&](bool may_collect) {
      const std::lock_guard lock(mutex);
      release_completed_locked();
      return segments.allocate(rounded, size, stream, context, may_collect);
    };
    auto result = attempt(/*may_collect=*/true);
    if (result.garbage > 0) {
      collect_garbage(result.garbage);
      result = attempt(/*may_collect=*/false);
    }
    if (result.block != nullptr) return result.block;
    reclaim_all();
    result = attempt(/*may_collect=*/false);
    if (result.block == nullptr && hooks.return_host_cache != nullptr) {
      hooks.return_host_cache();
      result = attempt(/*may_collect=*/false);
    }
    const std::lock_guard lock(mutex);
    ++segments.stats().num_alloc_retries;
    if (result.block != nullptr) return result.block;
  }
  const auto [free_bytes, total_bytes] = runtime::memory_info(device);
  const std::lock_guard lock(mutex);
  ++segments.stats().num_ooms;
  segments.record(TraceAction::kOutOfMemory, free_bytes, size, stream, pools.of(stream).id, context);
  throw OutOfDeviceMemory(size, free_bytes, total_bytes, size <= kNoDeviceHas ? segments.refusal() : std::string());
}

// Memory that returns to the driver -----------------------------------------------------------------------------------

namespace {

// Called without locks. Removes streams that another thread has begun to capture.
void wait_for(std::set<Stream*>& streams) {
  std::vector<Stream*> busy;
  std::copy_if(streams.begin(), streams.end(), std::back_inserter(busy),
               [](Stream* stream) { return !stream->is_idle(); });
  if (busy.empty()) return;
  const WithoutGil without_gil;
  for (Stream* stream : busy) {
    if (!stream->wait_unless_captured()) streams.erase(stream);
  }
}

}  // namespace

void BlockAllocator::State::reclaim(const Segments::Choice& chosen) {
  std::set<Stream*> waited_for;  // they are done with the blocks that were free at `start`
  uint64_t start = 0;
  if (!RunningWork::on_this_thread()) {
    std::set<Stream*> users;
    {
      const std::lock_guard lock(mutex);
      ++segments.stats().num_sync_all_streams;
      users.merge(pending.streams());
      users.merge(windows.streams());
      std::erase_if(users, [](const Stream* stream) { return stream->graph() != nullptr; });
    }
    wait_for(users);
    {
      const std::lock_guard lock(mutex);
      release_completed_locked();
      segments.merge_parked();
      waited_for = segments.users(chosen);
      start = segments.num_frees();
    }
    wait_for(waited_for);
  }
  const std::lock_guard lock(mutex);
  release_completed_locked();
  segments.release_unused([&](const Block* block) {
    if (!chosen(block)) return false;
    const auto is_done = [&](Stream* stream) {
      return (waited_for.contains(stream) && block->free_since <= start) || stream->is_idle();
    };
    // Running work finds no free block of its own stream that other work uses: see Note [Memory of running work].
    const std::vector<Stream*>& used_in = block->pool->used_in;
    return (RunningWork::on_this_thread(block->stream) || is_done(block->stream)) &&
           std::all_of(used_in.begin(), used_in.end(), is_done);
  });
}

void BlockAllocator::State::reclaim_all() {
  reclaim([](const Block* block) { return block->pool->may_return_segments(); });
}

// Returns the segments that have been free for longest: `bytes` of them.
void BlockAllocator::State::collect_garbage(uint64_t bytes) {
  std::set<const Block*> garbage;
  {
    const std::lock_guard lock(mutex);
    release_completed_locked();
    segments.merge_parked();
    garbage = segments.oldest(bytes);
  }
  if (garbage.empty()) return;
  // The lock was not held throughout: a block of the set may belong to another segment by now.
  reclaim([&garbage](const Block* block) { return garbage.contains(block) && block->pool->may_return_segments(); });
}

// The allocator -------------------------------------------------------------------------------------------------------

BlockAllocator::BlockAllocator(int32_t device, OptionsSource options)
    : state_(std::make_unique<State>(device, options).release()) {
  runtime::hold_at_forks(runtime::ForkOrder::kAllocator, state_->mutex);
  state_->history.hold_at_forks();
}

BlockAllocator* BlockAllocator::create(int32_t device, OptionsSource options) {
  return std::unique_ptr<BlockAllocator>(new BlockAllocator(device, options)).release();  // leaked, see the class
}

int32_t BlockAllocator::device() const {
  return state_->device;
}

mtia_device_ptr BlockAllocator::allocate(size_t size, Stream* stream) {
  Block* block = state_->allocate_quickly(size, stream);
  block->captures_before = Graph::num_ended();
  if (state_->poisons) [[unlikely]] {
    const std::lock_guard lock(state_->mutex);
    poison(*block, Poison::kFresh);
  }
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->allocated(block->address, block->size, /*is_private=*/stream->graph() != nullptr);
  return block->address;
}

void BlockAllocator::State::report_free(Observer& observer, mtia_device_ptr address) noexcept {
  {
    const std::lock_guard lock(mutex);
    const Block* block = segments.find(address);
    if (block == nullptr) return;
    for (const Stream* stream : block->other_streams) observer.reuse_waits_for(*stream, address, block->size);
  }
  observer.freed(address);
}

size_t BlockAllocator::free(mtia_device_ptr address, bool in_own_window) noexcept {
  if (Observer* observer = current_observer()) [[unlikely]]
    state_->report_free(*observer, address);
  const TraceContext context = in_own_window ? nullptr : state_->history.context_of_free();
  const std::lock_guard lock(state_->mutex);
  Block* block = state_->segments.find(address);
  if (block == nullptr) return 0;
  const size_t size = block->size;
  state_->segments.free(block, context);
  if (in_own_window) {
    if (state_->poisons) [[unlikely]]
      poison(*block, Poison::kFreed, in_own_window);
    state_->segments.release(block);
    return size;
  }
  if (!block->other_streams.empty()) state_->pending.add(block);
  if (block->pending_events == 0) state_->release_locked(block);
  return size;
}

std::optional<BlockInfo> BlockAllocator::find(mtia_device_ptr address) const noexcept {
  const std::lock_guard lock(state_->mutex);
  const Block* block = state_->segments.find(address);
  return block != nullptr ? std::optional(info_of(block)) : std::nullopt;
}

void BlockAllocator::set_tag(mtia_device_ptr address, const void* tag) noexcept {
  const std::lock_guard lock(state_->mutex);
  if (Block* block = state_->segments.find(address)) state_->segments.set_tag(block, tag);
}

std::vector<BlockInfo> BlockAllocator::tagged() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<BlockInfo> result;
  if (state_->segments.num_tagged() == 0) return result;
  state_->segments.for_each_block([&](const Block* block) {
    if (block->tag != nullptr) result.push_back(info_of(block));
  });
  return result;
}

WindowId BlockAllocator::open_window(Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  return state_->windows.open(stream);
}

void BlockAllocator::close_window(Stream* stream, WindowId id) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->windows.close(stream, id);
  while (auto window = state_->windows.take_closed(stream)) {
    while (Block* block = window->freed) {
      window->freed = block->next_free;
      state_->segments.release(block);
    }
    for (Block* block : window->used) state_->mark_late_locked(block, stream);
  }
}

Stream* BlockAllocator::record_stream(mtia_device_ptr address, Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  Block* block = state_->segments.find(address);
  if (block == nullptr) return nullptr;
  auto& streams = block->other_streams;
  if (stream != block->stream && std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
  return block->stream;
}

void BlockAllocator::empty_cache() {
  state_->reclaim_all();
}

void BlockAllocator::empty_cache(PoolId pool) {
  state_->reclaim([pool](const Block* block) { return block->pool->id == pool && block->pool->may_return_segments(); });
}

void BlockAllocator::use_pool(PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.use(pool);
}

void BlockAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.release(pool);
}

void BlockAllocator::direct_to_pool(Stream* stream, PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.direct(stream, pool);
}

void BlockAllocator::use_pool_in(PoolId pool, Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.use_in(pool, stream);
}

void BlockAllocator::direct_to_default_pool(Stream* stream) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.direct_to_default(stream);
  for (const auto& [captured, block] : state_->pending.end_capture(stream)) state_->mark_late_locked(block, captured);
}

void BlockAllocator::set_source(PoolId pool, const SegmentSource& source) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.set_source(pool, source);
}

DirectionId BlockAllocator::direct_thread_to_pool(PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  return state_->pools.direct_thread(pool);
}

void BlockAllocator::end_direction(DirectionId id) {
  const std::lock_guard lock(state_->mutex);
  state_->pools.end_direction(id);
}

void BlockAllocator::set_memory_fraction(double fraction) {
  const std::lock_guard lock(state_->mutex);
  state_->segments.limit().set_fraction(fraction);
}

double BlockAllocator::memory_fraction() const {
  const std::lock_guard lock(state_->mutex);
  return state_->segments.limit().fraction();
}

void BlockAllocator::record_history(HistoryOptions options) {
  state_->history.start(std::move(options));
}

std::vector<TraceEntry> BlockAllocator::history() const {
  return state_->history.entries();
}

std::vector<SegmentSnapshot> BlockAllocator::snapshot() {
  const std::lock_guard lock(state_->mutex);
  state_->segments.record(TraceAction::kSnapshot, 0, 0, nullptr, {0, 0}, nullptr);
  state_->segments.merge_parked();
  std::vector<SegmentSnapshot> result;
  state_->segments.for_each_block([&](const Block* block) {
    if (!block->mapped) return;
    if (block->begins_range()) {
      result.push_back({.address = block->address,
                        .stream = block->stream,
                        .pool = block->pool->id,
                        .is_large = !block->is_in_small_segment,
                        .is_expandable = block->expandable,
                        .context = block->segment_context});
    }
    result.back().size += block->size;
    result.back().blocks.push_back(
        {block->address, block->size, block->requested, block->allocated, block->in_use, block->context});
  });
  return result;
}

std::vector<mtia_span> BlockAllocator::live_ranges() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<mtia_span> result;
  state_->segments.for_each_block([&](const Block* block) {
    if (block->allocated) result.push_back({block->address, block->requested});
  });
  return result;
}

bool BlockAllocator::is_valid() const {
  const std::lock_guard lock(state_->mutex);
  return state_->segments.is_valid() && state_->pending.is_valid() && state_->windows.is_valid();
}

AllocatorStats BlockAllocator::stats() const {
  const std::lock_guard lock(state_->mutex);
  state_->segments.merge_parked();
  return state_->segments.stats();
}

void BlockAllocator::reset_peak_stats() {
  const std::lock_guard lock(state_->mutex);
  for_each_stat(state_->segments.stats(), [](Stat& stat) { stat.peak = stat.current; });
}

void BlockAllocator::reset_accumulated_stats() {
  const std::lock_guard lock(state_->mutex);
  AllocatorStats& stats = state_->segments.stats();
  for_each_stat(stats, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats.num_alloc_retries = 0;
  stats.num_ooms = 0;
  stats.num_sync_all_streams = 0;
  stats.num_device_alloc = 0;
  stats.num_device_free = 0;
}

}  // namespace torch_mtia::core
