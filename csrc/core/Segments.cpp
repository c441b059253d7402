// The allocator's lock is held in all of this file: see Note [Locks of the allocator] in BlockAllocator.cpp.
#include "Segments.h"

#include <algorithm>
#include <exception>

#include "Driver.h"
#include "Hooks.h"
#include "Stream.h"

namespace torch_mtia::core {

// Pools ---------------------------------------------------------------------------------------------------------------

MemoryPool& Pools::find(PoolId id) {
  if (id == PoolId{0, 0}) return default_;
  auto& pool = private_[id];
  if (pool == nullptr) {
    pool = std::make_unique<MemoryPool>();
    pool->id = id;
  }
  return *pool;
}

FreeBlocks& Pools::find_free_blocks(MemoryPool& pool, Stream* stream) {
  auto& found = pool.free_blocks[stream];
  if (found == nullptr) found = std::make_unique<FreeBlocks>();
  if (&pool == &default_) {
    recent_stream_ = stream;
    recent_ = found.get();
  }
  return *found;
}

void Pools::release(PoolId id) {
  const auto found = private_.find(id);
  if (found == private_.end() || found->second->users == 0) {
    throw std::invalid_argument("the memory pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) +
                                ") is not in use");
  }
  --found->second->users;
  discard_unused();
}

void Pools::use_in(PoolId id, Stream* stream) {
  auto& streams = find(id).used_in;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void Pools::discard_unused() noexcept {
  std::erase_if(private_, [this](const auto& entry) {
    const MemoryPool* pool = entry.second.get();
    const auto leads_here = [pool](const auto& direction) { return direction.second == pool; };
    const auto has_it = [pool](const auto& of_thread) {
      return std::ranges::count(of_thread.second, pool, &Direction::pool) > 0;
    };
    return pool->users == 0 && pool->num_segments == 0 && std::ranges::none_of(directed_, leads_here) &&
           std::ranges::none_of(directed_threads_, has_it);
  });
}

DirectionId Pools::direct_thread(PoolId id) {
  directed_threads_[std::this_thread::get_id()].push_back({++num_directions_, &find(id)});
  return num_directions_;
}

void Pools::end_direction(DirectionId id) {
  const auto ended = [id](auto& of_thread) {
    return std::erase_if(of_thread.second, [id](const Direction& direction) { return direction.id == id; }) > 0;
  };
  const auto found = std::ranges::find_if(directed_threads_, ended);
  if (found == directed_threads_.end()) throw std::invalid_argument("the thread no longer allocates from the pool");
  if (found->second.empty()) directed_threads_.erase(found);
  discard_unused();
}

// Blocks --------------------------------------------------------------------------------------------------------------

Segments::Attempt Segments::allocate(size_t size, size_t requested, Stream* stream, TraceContext& context,
                                     bool may_collect) {
  blocks_.prepare(3);  // a segment, the part of it that is mapped, and the rest of a block
  MemoryPool& pool = pools_.of(stream);
  Block* block = take_free(size, pool, stream);
  if (block == nullptr) {
    if (may_collect) {
      if (const uint64_t garbage = garbage_with(size)) return {nullptr, garbage};
    }
    if (size > kSmallRequest && pool.source.allocate == nullptr && options_().expandable_segments) {
      block = pools_.free_blocks(pool, stream).expandable.take(*this, size, pool, stream, context);
    }
    if (block == nullptr) {
      block = take_segment(size, pool, stream);
      if (block == nullptr) return {};
      block->segment_context = context;
      record(TraceAction::kSegmentAlloc, block->address, block->size, stream, pool.id, context);
    }
  }
  if (!is_oversize(block)) split(block, size);
  block->in_use = true;
  count_allocation(block, requested);
  block->counts_as_oversize = is_oversize(block);
  if (block->counts_as_oversize) increase(stats_.oversize_allocations, 1);
  record(TraceAction::kAlloc, block->address, requested, stream, pool.id, context);
  block->context = std::move(context);
  return {block};
}

void Segments::merge_free(Block* block) noexcept {
  block->in_use = false;
  if (Block* previous = block->previous; previous != nullptr && !previous->in_use) {
    remove_free(previous);
    block = merge(previous, block);
  }
  if (Block* next = block->next; next != nullptr && !next->in_use) {
    remove_free(next);
    block = merge(block, next);
  }
  insert_free(block);
}

void Segments::merge_parked(FreeBlocks& free) noexcept {
  while (Block* block = free.parked.best_fit(kBlockRounding)) {
    free.parked.remove(block);
    merge_free(block);
  }
}

void Segments::merge_parked() noexcept {
  pools_.for_each_free_blocks([this](const MemoryPool&, const Stream*, FreeBlocks& free) { merge_parked(free); });
}

void Segments::insert_free(Block* block) noexcept {
  pools_.free_blocks(block).insert(block);
  if (block->is_whole_segment()) return;
  increase(stats_.inactive_split, block, 1);
  increase(stats_.inactive_split_bytes, block, block->size);
}

void Segments::remove_free(Block* block) noexcept {
  pools_.free_blocks(block).remove(block);
  if (block->is_whole_segment()) return;
  decrease(stats_.inactive_split, block, 1);
  decrease(stats_.inactive_split_bytes, block, block->size);
}

// The best fit; null: the stream has no free block that is large enough, or only one that would be wasted on it.
Block* Segments::take_free(size_t size, MemoryPool& pool, Stream* stream) {
  FreeBlocks& free = pools_.free_blocks(pool, stream);
  Block* block = nullptr;
  if (size <= kSmallRequest) {
    block = free.parked.take(size);
    if (block != nullptr) return block;
    merge_parked(free);
    block = free.small.best_fit(size);
  } else {
    const AllocatorOptions now = options_();
    const bool oversize = size >= now.max_split_size;
    const size_t limit = now.expandable_segments ? kNoDeviceHas
                         : oversize              ? size + now.max_non_split_rounding
                                                 : now.max_split_size;
    block = free.large.best_fit(size, limit);
  }
  if (block != nullptr) remove_free(block);
  return block;
}

// Cuts a block that is in no list in two, and returns the second, which is in no list either.
Block* Segments::cut(Block* block, size_t size) noexcept {
  MTIA_ASSERT(0 < size && size < block->size);
  Block* rest = blocks_.take();
  blocks_.set_address(rest, block->address + size);
  rest->size = block->size - size;
  rest->is_in_small_segment = block->is_in_small_segment;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->expandable = block->expandable;
  rest->counts_as_oversize = false;
  rest->segment_is_oversize = false;
  rest->mapped = block->mapped;
  rest->in_use = block->in_use;
  rest->free_since = block->free_since;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  return rest;
}

// Cuts a free block that is in no list to `size`; the rest is free.
void Segments::split(Block* block, size_t size) noexcept {
  if (block->size == size) return;
  Block* rest = cut(block, size);
  rest->free_since = num_frees_;
  insert_free(rest);
}

// Both are in no list.
Block* Segments::merge(Block* front, Block* back) noexcept {
  MTIA_ASSERT(front->next == back && front->pool == back->pool && front->mapped == back->mapped);
  front->size += back->size;
  front->free_since = std::max(front->free_since, back->free_since);
  front->next = back->next;
  if (front->next != nullptr) front->next->previous = front;
  back->segment_context.reset();
  blocks_.put(back);
  return front;
}

namespace {

// Whether the blocks of a segment are linked, adjacent, and as Block says.
bool is_valid_chain(const Block* first) {
  if (first->previous != nullptr) return false;
  for (const Block* block = first; block != nullptr; block = block->next) {
    if (block->size == 0 || block->size % kBlockRounding != 0) return false;
    if (block->allocated && !(block->in_use && block->mapped && block->requested <= block->size)) return false;
    if (!block->mapped && !(block->in_use && block->expandable)) return false;
    if (block->pending_events < 0 || (block->pending_events > 0 && (block->allocated || !block->in_use))) return false;
    const Block* next = block->next;
    if (next == nullptr) break;
    if (next->previous != block || next->address != block->address + block->size) return false;
    if (next->pool != block->pool || next->stream != block->stream || next->expandable != block->expandable) {
      return false;
    }
    if ((!block->in_use && !next->in_use) || (!block->mapped && !next->mapped)) return false;
  }
  return true;
}

}  // namespace

bool Segments::is_valid() const {
  AllocatorStats counted;
  std::map<const MemoryPool*, size_t> num_segments;
  size_t num_blocks = 0;
  size_t num_tagged = 0;
  size_t num_free = 0;
  for (const Block* first : segments_) {
    if (!is_valid_chain(first)) return false;
    ++num_segments[first->pool];
    for (const Block* block = first; block != nullptr; block = block->next) {
      if (blocks_.find(block->address) != block || (block->tag != nullptr && !block->allocated)) return false;
      ++num_blocks;
      num_tagged += block->tag != nullptr;
      if (block->mapped) increase(counted.reserved_bytes, block, block->size);
      if (block->allocated) increase(counted.allocated_bytes, block, block->size);
      if (block->mapped && block->in_use) increase(counted.active_bytes, block, block->size);
      num_free += !block->in_use;
      if (!block->in_use && !block->is_whole_segment()) increase(counted.inactive_split_bytes, block, block->size);
    }
  }
  bool is_listed_rightly = true;
  pools_.for_each_free_blocks([&](const MemoryPool& pool, const Stream* stream, const FreeBlocks& free) {
    const auto belongs = [&](const Block* block) { return block->pool == &pool && block->stream == stream; };
    free.parked.for_each([&](const Block* block) {
      decrease(counted.active_bytes, block, block->size);  // parked, it looks used
      is_listed_rightly &= belongs(block) && block->in_use && !block->allocated && block->is_in_small_segment;
    });
    const auto count = [&](const Block* block, bool small) {
      --num_free;
      is_listed_rightly &= belongs(block) && !block->in_use && block->is_in_small_segment == small;
    };
    free.small.for_each([&](const Block* block) { count(block, true); });
    free.large.for_each([&](const Block* block) { count(block, false); });
    is_listed_rightly &= pool.num_segments == num_segments[&pool];
  });
  const auto agree = [&](StatArray AllocatorStats::* stat) {
    return std::equal(std::begin(counted.*stat), std::end(counted.*stat), std::begin(stats_.*stat),
                      [](const Stat& a, const Stat& b) { return a.current == b.current; });
  };
  return is_listed_rightly && num_free == 0 && num_blocks == blocks_.num_used() && num_tagged == num_tagged_ &&
         agree(&AllocatorStats::reserved_bytes) && agree(&AllocatorStats::allocated_bytes) &&
         agree(&AllocatorStats::active_bytes) && agree(&AllocatorStats::inactive_split_bytes);
}

// Segments ------------------------------------------------------------------------------------------------------------

std::vector<const Block*> Segments::by_address() const {
  std::vector<const Block*> sorted(segments_.begin(), segments_.end());
  std::sort(sorted.begin(), sorted.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  return sorted;
}

bool Segments::has_space_for(size_t size) {
  if (limit_.allows(static_cast<uint64_t>(stats_.reserved_bytes[kAll].current) + size)) return true;
  refusal_ = "the process may hold no more of the device's memory, by set_per_process_memory_fraction";
  return false;
}

// A new segment as one block, at addresses from `take`, a function of the driver. Null: the driver has no more.
Block* Segments::new_segment(Take take, size_t size, bool small, MemoryPool& pool, Stream* stream) {
  Block* block = blocks_.take();
  const auto segment = segments_.insert(block).first;  // before the segment exists, because it can throw
  mtia_device_ptr address = 0;
  const bool is_pools_own = pool.source.allocate != nullptr;
  mtia_status status = MTIA_SUCCESS;
  if (is_pools_own) {
    address = reinterpret_cast<mtia_device_ptr>(pool.source.allocate(size, device_, stream->handle()));
    if (address == 0) status = MTIA_ERROR_OUT_OF_MEMORY;
  } else {
    status = (runtime::driver().*take)(device_, size, &address);
  }
  if (status != MTIA_SUCCESS) {
    segments_.erase(segment);
    blocks_.put(block);
    if (status != MTIA_ERROR_OUT_OF_MEMORY) runtime::check(status, take);
    refusal_ = is_pools_own ? "the allocator of the memory pool gave none" : runtime::driver().last_error_message();
    return nullptr;
  }
  if (address == 0 || address % kSegmentAlignment != 0) {
    segments_.erase(segment);
    blocks_.put(block);
    const std::string what = "gave memory at address " + std::to_string(address);
    if (is_pools_own) throw std::runtime_error("the allocator of the memory pool " + what + ", not a multiple of 4096");
    runtime::reject(take, what);
  }
  blocks_.set_address(block, address);
  block->size = size;
  block->is_in_small_segment = small;
  block->stream = stream;
  block->pool = &pool;
  block->expandable = false;
  block->counts_as_oversize = false;
  block->segment_is_oversize = false;
  block->mapped = true;
  block->in_use = false;
  block->previous = nullptr;
  block->next = nullptr;
  ++pool.num_segments;
  return block;
}

// Null: the device is full.
Block* Segments::take_segment(size_t size, MemoryPool& pool, Stream* stream) {
  const bool small = size <= kSmallRequest;
  const auto take = [&](size_t segment_size) {
    if (!has_space_for(segment_size)) return static_cast<Block*>(nullptr);
    return new_segment(&mtia_runtime_api::memory_allocate, segment_size, small, pool, stream);
  };
  Block* block = take(segment_size_for(size));
  // A shared segment is larger than the request.
  const size_t least = round_up(size, kSegmentRounding);
  if (block == nullptr && least < segment_size_for(size)) block = take(least);
  if (block == nullptr) return nullptr;
  increase(stats_.segment, block, 1);
  increase(stats_.reserved_bytes, block, block->size);
  block->segment_is_oversize = is_oversize(block);
  if (block->segment_is_oversize) increase(stats_.oversize_segments, 1);
  ++stats_.num_device_alloc;
  return block;
}

// The block is the whole segment.
void Segments::end_segment(Block* block) noexcept {
  MTIA_ASSERT(block->is_whole_segment());
  --block->pool->num_segments;
  segments_.erase(block);
  blocks_.put(block);
}

// Expandable segments -------------------------------------------------------------------------------------------------

namespace {

// The unit of mapping.
constexpr size_t kPage = kSegmentRounding;

bool can_become_free(const Block* block) {
  return !block->mapped || !block->in_use;
}

}  // namespace

Block* ExpandableSegment::take(Segments& segments, size_t size, MemoryPool& pool, Stream* stream,
                               const TraceContext& context) {
  if (first_ == nullptr) first_ = reserve(segments, pool, stream);
  Block* first = first_;
  // First fit: neighbours that are free or without memory, and large enough together.
  while (first != nullptr) {
    size_t available = 0;
    Block* end = first;
    for (; end != nullptr && can_become_free(end); end = end->next) available += end->size;
    if (available >= size) break;
    first = end == nullptr ? nullptr : end->next;
  }
  if (first == nullptr) return nullptr;

  Block* block = nullptr;
  // Memory that is mapped so far stays, as a free block.
  const auto give_up = [&] { block == nullptr ? release_if_empty(segments, first) : segments.insert_free(block); };
  try {
    for (Block* next = first; next != nullptr && can_become_free(next); next = block->next) {
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

// A new segment as one block without memory. Null: the driver has no addresses left.
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

// Maps memory to the first `size` bytes of a block without memory. They are a free block then, in no list. Null: the
// device is full.
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
  // It joins two mapped ranges, or extends one, or is a new one.
  const bool joins_next = block->next != nullptr && block->next->mapped;
  if (block->begins_range() && !joins_next) increase(segments.stats_.segment, block, 1);
  if (!block->begins_range() && joins_next) decrease(segments.stats_.segment, block, 1);
  ++segments.stats_.num_device_alloc;
  segments.record(TraceAction::kSegmentMap, block->address, size, block->stream, block->pool->id, context);
  return block;
}

Block* ExpandableSegment::detach_pages(Segments& segments, Block* block) noexcept {
  const size_t front = round_up(block->address, kPage) - block->address;
  Block* previous = nullptr;
  if (front != 0) {
    previous = block;
    block = segments.cut(block, front);
  }
  Block* next = nullptr;
  if (const size_t pages = block->size / kPage * kPage; pages != block->size) next = segments.cut(block, pages);
  block->in_use = true;  // so that no neighbour merges with it
  if (previous != nullptr) segments.insert_free(previous);
  if (next != nullptr) segments.insert_free(next);
  return block;
}

void ExpandableSegment::unmapped(Segments& segments, Block* block) noexcept {
  const bool joins_next = block->next != nullptr && block->next->mapped;
  if (block->begins_range() && !joins_next) decrease(segments.stats_.segment, block, 1);
  if (!block->begins_range() && joins_next) increase(segments.stats_.segment, block, 1);
  decrease(segments.stats_.reserved_bytes, block, block->size);
  ++segments.stats_.num_device_free;
  segments.record(TraceAction::kSegmentUnmap, block->address, block->size, block->stream, block->pool->id,
                  block->segment_context);
  block->segment_context.reset();
  block->mapped = false;
  if (block->previous != nullptr && !block->previous->mapped) block = segments.merge(block->previous, block);
  if (block->next != nullptr && !block->next->mapped) block = segments.merge(block, block->next);
  release_if_empty(segments, block);
}

// Ends the segment if the block, which has no memory, is the whole segment. Addresses that the driver fails to release
// are leaked.
void ExpandableSegment::release_if_empty(Segments& segments, Block* block) noexcept {
  if (block->previous != nullptr || block->next != nullptr) return;
  runtime::driver().memory_release(segments.device_, block->address);
  first_ = nullptr;
  segments.end_segment(block);
}

// What goes back to the driver ----------------------------------------------------------------------------------------

// The bytes by which one more segment would exceed the threshold; 0: it would not.
uint64_t Segments::garbage_with(size_t size) const {
  const double threshold = options_().garbage_collection_threshold;
  if (threshold <= 0) return 0;
  const auto wanted = static_cast<uint64_t>(stats_.reserved_bytes[kAll].current) + segment_size_for(size);
  const auto allowed = static_cast<uint64_t>(threshold * static_cast<double>(limit_.bytes()));
  return wanted > allowed ? wanted - allowed : 0;
}

// The bytes of a block that the driver could get back.
size_t Segments::returnable_bytes(const Block* block) const {
  if (block->in_use) return 0;
  const auto is_captured = [](const Stream* stream) { return stream->graph() != nullptr; };
  const std::vector<Stream*>& used_in = block->pool->used_in;
  if (is_captured(block->stream) || std::any_of(used_in.begin(), used_in.end(), is_captured)) return 0;
  if (!block->expandable) return block->is_whole_segment() ? block->size : 0;
  const uint64_t begin = round_up(block->address, kSegmentRounding);
  const uint64_t end = (block->address + block->size) / kSegmentRounding * kSegmentRounding;
  return end > begin ? end - begin : 0;
}

template <typename Apply>
void Segments::for_each_returnable(Apply apply) const {
  for (Block* first : segments_) {
    for (Block* block = first; block != nullptr; block = block->next) {
      if (returnable_bytes(block) > 0) apply(block);
    }
  }
}

std::set<Stream*> Segments::users(const Choice& chosen) const {
  std::set<Stream*> streams;
  for_each_returnable([&](const Block* block) {
    if (!chosen(block)) return;
    streams.insert(block->stream);
    streams.insert(block->pool->used_in.begin(), block->pool->used_in.end());
  });
  return streams;
}

std::set<const Block*> Segments::oldest(uint64_t bytes) const {
  std::vector<const Block*> free;
  for_each_returnable([&](const Block* block) {
    if (block->pool->may_return_segments()) free.push_back(block);
  });
  std::sort(free.begin(), free.end(), [](const Block* a, const Block* b) { return a->free_since < b->free_since; });
  std::set<const Block*> found;
  uint64_t collected = 0;
  for (const Block* block : free) {
    if (collected >= bytes) break;
    found.insert(block);
    collected += returnable_bytes(block);
  }
  return found;
}

// Takes chosen free memory off the free lists.
std::vector<Block*> Segments::detach(const Choice& chosen) {
  merge_parked();
  std::vector<Block*> detached;
  for_each_returnable([&](Block* block) {
    if (chosen(block)) detached.push_back(block);
  });
  blocks_.prepare(2 * detached.size());  // for the rests of those of expandable segments
  for (Block*& block : detached) {
    remove_free(block);
    if (block->expandable) block = ExpandableSegment::detach_pages(*this, block);
  }
  return detached;
}

// The driver has taken back a block from detach.
void Segments::returned(Block* block) noexcept {
  if (block->expandable) return pools_.free_blocks(block).expandable.unmapped(*this, block);
  decrease(stats_.segment, block, 1);
  decrease(stats_.reserved_bytes, block, block->size);
  if (block->segment_is_oversize) decrease(stats_.oversize_segments, 1);
  ++stats_.num_device_free;
  record(TraceAction::kSegmentFree, block->address, block->size, block->stream, block->pool->id,
         block->segment_context);
  block->segment_context.reset();
  end_segment(block);
}

// Called before the driver can reuse the memory. The caller has waited for these streams.
void Segments::report_return(const Block* block) {
  Observer* observer = current_observer();
  if (observer == nullptr) return;
  observer->reuse_waits_for(*block->stream, block->address, block->size);
  for (const Stream* stream : block->pool->used_in) observer->reuse_waits_for(*stream, block->address, block->size);
}

void Segments::release_unused(const Choice& chosen) {
  const std::vector<Block*> detached = detach(chosen);
  size_t num_returned = 0;
  std::exception_ptr failure;
  try {
    for (Block* block : detached) {
      report_return(block);
      if (block->expandable) {
        runtime::call(&mtia_runtime_api::memory_unmap, device_, block->address, block->size);
      } else if (block->pool->source.free != nullptr) {
        block->pool->source.free(reinterpret_cast<void*>(block->address), block->size, device_,
                                 block->stream->handle());
      } else {
        runtime::call(&mtia_runtime_api::memory_free, device_, block->address);
      }
      ++num_returned;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t i = 0; i < detached.size(); ++i) {
    i < num_returned ? returned(detached[i]) : merge_free(detached[i]);
  }
  pools_.discard_unused();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace torch_mtia::core
