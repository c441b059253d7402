// How free segments go back to the driver: when the device is full, by the threshold, or because somebody asks for it.
#include <algorithm>
#include <iterator>
#include <mutex>

#include "AllocatorState.h"
#include "BlockingWait.h"
#include "RunningWork.h"
#include "Stream.h"

namespace torch_mtia::core {
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

void BlockAllocator::State::reclaim(const Segments::Choice& chosen) {
  std::set<Stream*> waited_for;  // they are done with the blocks that were free at `start`
  uint64_t start = 0;
  if (!RunningWork::on_this_thread()) {
    std::set<Stream*> users;
    {
      const std::lock_guard lock(mutex);
      ++segments.stats().num_sync_all_streams;
      for (const std::vector<Stream*>& busy : {pending.streams(), windows.streams()}) {
        std::copy_if(busy.begin(), busy.end(), std::inserter(users, users.end()),
                     [](Stream* stream) { return stream->graph() == nullptr; });
      }
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
  segments.give_back([&](const Block* block) {
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
    segments.merge_parked();
    garbage = segments.oldest(bytes);
  }
  if (garbage.empty()) return;
  // The lock was not held all the time: one of them may be a block of something else by now.
  reclaim([&garbage](const Block* block) { return garbage.contains(block) && block->pool->may_return_segments(); });
}

}  // namespace torch_mtia::core
