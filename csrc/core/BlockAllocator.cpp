#include "BlockAllocator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

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

template <typename Apply>
void for_each_stat(AllocatorStats& stats, Apply apply) {
  for (Stat* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                     &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    apply(*stat);
  }
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
  explicit State(int32_t device) : device(device) {}

  const int32_t device;
  std::mutex reclaim_mutex;
  mutable SmallMutex mutex;
  AllocatorStats stats;
  std::set<Block*> segments;  // the first block of each
  std::unordered_map<Stream*, std::unique_ptr<FreeBlocks>> free_blocks;
  Stream* recent_stream = nullptr;  // and its free blocks: nearly every call is for the same stream
  FreeBlocks* recent = nullptr;
  std::unordered_map<Stream*, std::deque<PendingFree>> pending;  // a stream's events complete in order
  size_t num_pending = 0;
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

  Block* try_allocate(size_t size, size_t requested, Stream* stream);
  void reclaim();

  FreeBlocks& free_blocks_locked(Stream* stream);
  void prepare_blocks_locked(size_t count);
  Block* new_block_locked() noexcept;
  void discard_block_locked(Block* block) noexcept;
  void insert_free_locked(Block* block) noexcept;
  void remove_free_locked(Block* block) noexcept;
  Block* take_free_locked(size_t size, Stream* stream);
  Block* take_segment_locked(size_t size, Stream* stream);
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
  std::vector<Block*> detach_free_segments_locked();
};

FreeBlocks& BlockAllocator::State::free_blocks_locked(Stream* stream) {
  if (stream != recent_stream) {
    auto& found = free_blocks[stream];
    if (found == nullptr) found = std::make_unique<FreeBlocks>();
    recent_stream = stream;
    recent = found.get();
  }
  return *recent;
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
  free_blocks_locked(block->stream).insert(block);
  if (!block->is_whole_segment()) increase(stats.inactive_split_bytes, block->size);
}

void BlockAllocator::State::remove_free_locked(Block* block) noexcept {
  free_blocks_locked(block->stream).remove(block);
  if (!block->is_whole_segment()) decrease(stats.inactive_split_bytes, block->size);
}

// The best fit; null: the stream has no free block that is large enough.
Block* BlockAllocator::State::take_free_locked(size_t size, Stream* stream) {
  FreeBlocks& free = free_blocks_locked(stream);
  if (size <= kSmallRequest) {
    if (Block* block = free.parked.exact_fit(size); block != nullptr) {
      free.parked.remove(block);
      return block;
    }
    merge_parked_locked(free);
  }
  Block* block = size <= kSmallRequest ? free.small.best_fit(size) : free.large.best_fit(size);
  if (block != nullptr) remove_free_locked(block);
  return block;
}

// A new segment as one block; null: the device is full.
Block* BlockAllocator::State::take_segment_locked(size_t size, Stream* stream) {
  Block* block = new_block_locked();
  const auto segment = segments.insert(block).first;  // before the segment exists, because it can throw
  const size_t segment_size = segment_size_for(size);
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
  block->before = nullptr;
  block->behind = nullptr;
  increase(stats.segment, 1);
  increase(stats.reserved_bytes, segment_size);
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
  rest->in_use = false;
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
  front->behind = back->behind;
  if (front->behind != nullptr) front->behind->before = front;
  discard_block_locked(back);
  return front;
}

// The block is free: other streams are done with it, and what its own stream still does comes before its next use.
void BlockAllocator::State::release_locked(Block* block) noexcept {
  decrease(stats.active, 1);
  decrease(stats.active_bytes, block->size);
  decrease(stats.requested_bytes, block->requested);
  block->other_streams.clear();
  if (block->is_in_small_segment()) {
    free_blocks_locked(block->stream).parked.insert(block);
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
  for (const auto& [stream, free] : free_blocks) merge_parked_locked(*free);
}

void BlockAllocator::State::count_free_locked(Block* block) noexcept {
  block->handed_out = false;
  decrease(stats.allocation, 1);
  decrease(stats.allocated_bytes, block->size);
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

std::vector<Block*> BlockAllocator::State::detach_free_segments_locked() {
  merge_all_parked_locked();
  std::vector<Block*> detached;
  for (Block* block : segments) {
    if (!block->in_use && block->is_whole_segment()) detached.push_back(block);
  }
  for (Block* block : detached) remove_free_locked(block);
  return detached;
}

Block* BlockAllocator::State::try_allocate(size_t size, size_t requested, Stream* stream) {
  const std::lock_guard lock(mutex);
  release_completed_locked();
  prepare_blocks_locked(2);  // a segment and the rest of a block
  Block* block = take_free_locked(size, stream);
  if (block == nullptr) block = take_segment_locked(size, stream);
  if (block == nullptr) return nullptr;
  split_locked(block, size);
  block->handed_out = true;
  block->in_use = true;
  block->requested = requested;
  increase(stats.allocation, 1);
  increase(stats.active, 1);
  increase(stats.allocated_bytes, size);
  increase(stats.active_bytes, size);
  increase(stats.requested_bytes, requested);
  return block;
}

// Waits for the device and returns every segment that is free to the driver.
void BlockAllocator::State::reclaim() {
  const std::lock_guard reclaiming(reclaim_mutex);
  std::vector<Stream*> busy;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [stream, frees] : pending) {
      if (!frees.empty()) busy.push_back(stream);
    }
  }
  for (Stream* stream : busy) stream->wait_until_idle();

  std::vector<Block*> detached;
  {
    const std::lock_guard lock(mutex);
    release_completed_locked();
    detached = detach_free_segments_locked();
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
    decrease(stats.segment, 1);
    decrease(stats.reserved_bytes, block->size);
    segments.erase(block);
    discard_block_locked(block);
  }
  if (failure) std::rethrow_exception(failure);
}

BlockAllocator::BlockAllocator(int32_t device) : state_(std::make_unique<State>(device).release()) {}

BlockAllocator* BlockAllocator::create(int32_t device) {
  return std::unique_ptr<BlockAllocator>(new BlockAllocator(device)).release();  // leaked, see the class
}

Block* BlockAllocator::allocate(size_t size, Stream* stream) {
  if (size <= kNoDeviceHas) {
    const size_t rounded = round_up(std::max<size_t>(size, 1), kBlockRounding);
    if (Block* block = state_->try_allocate(rounded, size, stream)) return block;
    state_->reclaim();
    Block* block = state_->try_allocate(rounded, size, stream);
    const std::lock_guard lock(state_->mutex);
    ++state_->stats.num_alloc_retries;
    if (block != nullptr) return block;
  }
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  runtime::check(runtime::driver().memory_info(state_->device, &free_bytes, &total_bytes));
  const std::lock_guard lock(state_->mutex);
  ++state_->stats.num_ooms;
  throw OutOfDeviceMemory(size, free_bytes, total_bytes);
}

void BlockAllocator::free(Block* block) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->count_free_locked(block);
  if (!block->other_streams.empty()) state_->delay_release_locked(block);
  if (block->pending_events == 0) state_->release_in_order_locked(block);
}

void BlockAllocator::free_while_running(Block* block) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->count_free_locked(block);
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
  state_->reclaim();
}

std::vector<mtia_span> BlockAllocator::live_spans() const {
  std::vector<mtia_span> spans;
  {
    const std::lock_guard lock(state_->mutex);
    for (const Block* block : state_->segments) {
      for (; block != nullptr; block = block->behind) {
        if (block->handed_out) spans.push_back({block->address, block->requested});
      }
    }
  }
  std::sort(spans.begin(), spans.end(), [](const mtia_span& a, const mtia_span& b) { return a.address < b.address; });
  return spans;
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
}

}  // namespace torch_mtia::core
