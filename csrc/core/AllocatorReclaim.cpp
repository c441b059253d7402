// How free segments go back to the driver: when the device is full, by the threshold, or because somebody asks for it.
#include <algorithm>
#include <exception>
#include <iterator>

#include "AllocatorState.h"
#include "InterpreterLock.h"
#include "RunningWork.h"

namespace torch_mtia::core {

// Of a block: what the driver would get back.
size_t BlockAllocator::State::returnable_bytes_locked(const Block* block) const {
  if (block->in_use) return 0;
  const auto is_captured = [](const Stream* stream) { return stream->graph() != nullptr; };
  const std::vector<Stream*>& used_in = block->pool->used_in;
  if (is_captured(block->stream) || std::any_of(used_in.begin(), used_in.end(), is_captured)) return 0;
  if (!block->expandable) return block->is_whole_segment() ? block->size : 0;
  const uint64_t begin = round_up(block->address, kSegmentRounding);
  const uint64_t end = (block->address + block->size) / kSegmentRounding * kSegmentRounding;
  return end > begin ? end - begin : 0;
}

std::vector<Block*> BlockAllocator::State::detach_free_segments_locked(
    const std::function<bool(const Block*)>& chosen) {
  merge_all_parked_locked();
  std::vector<Block*> detached;
  for (Block* first : segments) {
    for (Block* block = first; block != nullptr; block = block->behind) {
      if (returnable_bytes_locked(block) > 0 && chosen(block)) detached.push_back(block);
    }
  }
  prepare_blocks_locked(2 * detached.size());  // for the rests of those of expandable segments
  for (Block*& block : detached) {
    remove_free_locked(block);
    if (block->expandable) block = detach_pages_locked(block);
  }
  return detached;
}

// The driver has taken back what detach_free_segments_locked gave.
void BlockAllocator::State::returned_locked(Block* block) noexcept {
  if (block->expandable) return unmapped_locked(block);
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

// How many bytes too many would be held with a segment more, by the threshold; 0 where there is none.
uint64_t BlockAllocator::State::garbage_locked(size_t size) const {
  const double threshold = options().garbage_collection_threshold;
  if (threshold <= 0) return 0;
  const auto wanted = static_cast<uint64_t>(stats.reserved_bytes[kAll].current) + segment_size_for(size);
  const auto allowed = static_cast<uint64_t>(threshold * static_cast<double>(memory_limit()));
  return wanted > allowed ? wanted - allowed : 0;
}

// The streams whose free blocks can go once the streams have been waited for.
std::set<Stream*> BlockAllocator::State::used_streams_locked(const std::function<bool(const Block*)>& chosen) {
  std::set<Stream*> streams;
  for (const Block* first : segments) {
    for (const Block* block = first; block != nullptr; block = block->behind) {
      if (returnable_bytes_locked(block) == 0 || !chosen(block)) continue;
      streams.insert(block->stream);
      streams.insert(block->pool->used_in.begin(), block->pool->used_in.end());
    }
  }
  return streams;
}

void BlockAllocator::State::return_segments_locked(const std::function<bool(const Block*)>& chosen) {
  const std::vector<Block*> detached = detach_free_segments_locked(chosen);
  size_t returned = 0;
  std::exception_ptr failure;
  try {
    for (Block* block : detached) {
      if (block->expandable) {
        runtime::call(&mtia_runtime_api::memory_unmap, device, block->address, block->size);
      } else {
        runtime::call(&mtia_runtime_api::memory_free, device, block->address);
      }
      ++returned;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t i = 0; i < detached.size(); ++i) {
    i < returned ? returned_locked(detached[i]) : merge_free_locked(detached[i]);
  }
  discard_unused_pools_locked();
  if (failure) std::rethrow_exception(failure);
}

namespace {

// No lock of the allocator is held. Takes those out that another thread has begun to capture.
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

void BlockAllocator::State::reclaim(const std::function<bool(const Block*)>& chosen) {
  std::set<Stream*> waited_for;  // they are done with the blocks that were free at `start`
  uint64_t start = 0;
  if (!RunningWork::on_this_thread()) {
    std::set<Stream*> users;
    {
      const std::lock_guard lock(mutex);
      ++stats.num_sync_all_streams;
      for (const auto& [stream, frees] : pending) {
        if (!frees.empty() && stream->graph() == nullptr) users.insert(stream);
      }
      for (const auto& [stream, open] : windows) {
        if (!open.empty() && stream->graph() == nullptr) users.insert(stream);
      }
    }
    wait_for(users);
    {
      const std::lock_guard lock(mutex);
      release_completed_locked();
      merge_all_parked_locked();
      waited_for = used_streams_locked(chosen);
      start = num_frees;
    }
    wait_for(waited_for);
  }
  const std::lock_guard lock(mutex);
  release_completed_locked();
  return_segments_locked([&](const Block* block) {
    if (!chosen(block)) return false;
    const auto is_done = [&](Stream* stream) {
      return (waited_for.contains(stream) && block->free_since <= start) || stream->is_idle();
    };
    // Of its own stream, running work finds free only what is done with.
    const std::vector<Stream*>& used_in = block->pool->used_in;
    return (RunningWork::on_this_thread(block->stream) || is_done(block->stream)) &&
           std::all_of(used_in.begin(), used_in.end(), is_done);
  });
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
    for (const Block* first : segments) {
      for (const Block* block = first; block != nullptr; block = block->behind) {
        if (returnable_bytes_locked(block) > 0 && block->pool->may_return_segments()) free.push_back(block);
      }
    }
    std::sort(free.begin(), free.end(), [](const Block* a, const Block* b) { return a->free_since < b->free_since; });
    uint64_t collected = 0;
    for (const Block* block : free) {
      if (collected >= bytes) break;
      garbage.insert(block);
      collected += returnable_bytes_locked(block);
    }
  }
  if (garbage.empty()) return;
  // The lock was not held all the time: one of them may be a block of something else by now.
  reclaim([&garbage](const Block* block) { return garbage.contains(block) && block->pool->may_return_segments(); });
}

}  // namespace torch_mtia::core
