// Deferred frees: blocks that the program has freed, and that running work or other streams may still use. For the
// files of the allocator only, and called with its lock held: see Note [Locks of the allocator] in BlockAllocator.cpp.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "Block.h"
#include "Event.h"

namespace torch_mtia::core {

// A queue for each stream. Nearly always all are empty.
template <typename Entry>
using StreamQueues = std::multimap<Stream*, Entry>;

template <typename Entry>
std::set<Stream*> streams_of(const StreamQueues<Entry>& queues) {
  std::set<Stream*> result;
  for (const auto& [stream, entry] : queues) result.insert(stream);
  return result;
}

// The windows of running work: see Note [Memory of running work] in BlockAllocator.h.
//
// A block that is freed while windows are open becomes free when the latest of them, and those before it, are closed:
// work that uses the block may be ordered after each of their items. Windows that open later belong to items after that
// work, so a stream of overlapping items does not defer the block for ever.
class Windows {
 public:
  struct Window {
    WindowId id;
    bool closed = false;
    Block* freed = nullptr;         // a list, linked by next_free, of the stream's own blocks
    std::vector<Block*> used = {};  // blocks of other streams, which this one used
  };

  WindowId open(Stream* stream);
  void close(Stream* stream, WindowId id) noexcept;
  // To be called after each close, until it returns none: the next window of the stream that is closed, as are those
  // before it.
  std::optional<Window> take_closed(Stream* stream) noexcept;

  // Defers a freed block of its own stream to the latest window. False: none is open.
  bool defer(Block* block) noexcept {
    Window* window = windows_.empty() ? nullptr : latest(block->stream);
    if (window == nullptr) [[likely]]
      return false;
    block->next_free = window->freed;
    window->freed = block;
    return true;
  }
  // The same for a freed block of another stream, which `stream` uses. Throws std::bad_alloc.
  bool defer_use(Block* block, Stream* stream);

  std::set<Stream*> streams() const { return streams_of(windows_); }
  bool is_valid() const;

 private:
  Window* latest(Stream* stream) noexcept;  // null: none is open

  StreamQueues<Window> windows_;  // the first of each stream is open
  WindowId last_ = 0;
};

// Freed blocks that other streams may still use (record_stream). Each waits for events, recorded in those streams when
// it was freed, or later where a stream could record none: `pending_events` counts both.
class PendingFrees {
 public:
  explicit PendingFrees(Windows& windows) : windows_(windows) {}

  // Records events in the streams that use the freed block. If its pending_events is 0 then, it waits for none.
  void add(Block* block) noexcept;

  // Calls release(block) for blocks whose events are complete.
  template <typename Release>
  void take_completed(Release release) {
    for (auto next = pending_.begin(); next != pending_.end();) {
      auto& [event, block] = next->second;
      if (!event.query()) {  // a stream's events complete in order
        next = pending_.upper_bound(next->first);
        continue;
      }
      unused_events_.push_back(std::move(event));
      Block* const done = --block->pending_events == 0 ? block : nullptr;
      next = pending_.erase(next);
      if (done != nullptr) release(done);
    }
  }

  // The stream can record an event now: its window is closed, or its capture has ended. True: the block waits for
  // nothing else.
  bool mark_late(Block* block, Stream* stream) noexcept;
  // The blocks that wait for the end of the stream's capture, for mark_late.
  StreamQueues<Block*> end_capture(Stream* stream) noexcept;

  // The streams whose events are pending.
  std::set<Stream*> streams() const { return streams_of(pending_); }
  bool is_valid() const;

 private:
  struct PendingFree {
    Event event;
    Block* block;
  };

  void mark(Block* block, Stream* stream);

  Windows& windows_;
  StreamQueues<PendingFree> pending_;
  StreamQueues<Block*> used_in_capture_;
  std::vector<Event> unused_events_;
};

}  // namespace torch_mtia::core
