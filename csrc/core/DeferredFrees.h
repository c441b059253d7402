// Blocks that are freed and not free yet, because running work or other streams may use them. For the files of the
// allocator only, and called with its lock held: see Note [Locks of the allocator] in BlockAllocator.cpp.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "Block.h"
#include "Event.h"

namespace torch_mtia::core {

// The windows of running work: see Note [Memory of running work] in BlockAllocator.h.
//
// A block that is freed while a window is open becomes free when this window and those before it are closed: work that
// uses the block may be ordered after each of their items. Windows that open later belong to items after that work, so
// a stream of overlapping items does not defer the block for ever.
class Windows {
 public:
  struct Window {
    WindowId id;
    bool closed = false;
    Block* freed = nullptr;         // a list, linked by next_free, of the stream's own blocks
    std::vector<Block*> used = {};  // of other streams, which this one used
  };

  WindowId open(Stream* stream);
  void close(Stream* stream, WindowId id) noexcept;
  // After each close, until it is empty: the next window of the stream that is closed, as are those before it. What it
  // held is the caller's.
  std::optional<Window> take_closed(Stream* stream) noexcept;

  // Keeps a freed block of its own stream in the latest window. False: none is open.
  bool hold(Block* block) noexcept {
    Window* window = num_windows_ == 0 ? nullptr : latest(block->stream);
    if (window == nullptr) [[likely]]
      return false;
    block->next_free = window->freed;
    window->freed = block;
    return true;
  }
  // The same for a freed block of another stream, which `stream` uses. Throws std::bad_alloc.
  bool hold_use(Block* block, Stream* stream);

  // The streams that have open windows.
  std::vector<Stream*> streams() const;
  bool is_valid() const;

 private:
  Window* latest(Stream* stream) noexcept;  // null: none is open

  std::unordered_map<Stream*, std::deque<Window>> windows_;  // in the order of opening; the first one is open
  size_t num_windows_ = 0;
  WindowId last_ = 0;
};

// Freed blocks that other streams may still use (record_stream). A block counts in `pending_events` what has to come
// before it is free: events that mark where the other streams were when it was freed, and, where a stream cannot be
// marked yet, the time when it can.
class PendingFrees {
 public:
  explicit PendingFrees(Windows& windows) : windows_(windows) {}

  // Marks where the streams are that use the block, which was freed. It waits for nothing if pending_events is 0 then.
  void add(Block* block) noexcept;

  // Calls release(block) for those whose streams have got where they were marked.
  template <typename Release>
  void take_completed(Release release) {
    if (num_pending_ == 0) [[likely]]
      return;
    for (auto& [stream, frees] : pending_) {
      while (!frees.empty() && frees.front().event.query()) {
        Block* block = frees.front().block;
        unused_events_.push_back(std::move(frees.front().event));
        frees.pop_front();
        --num_pending_;
        if (--block->pending_events == 0) release(block);
      }
    }
  }

  // The stream, which could not be marked before, can be now: its window is closed, or its capture has ended. True: the
  // block waits for nothing else.
  bool mark_late(Block* block, Stream* stream) noexcept;
  // The blocks that wait for the end of the stream's capture, for mark_late.
  std::vector<Block*> end_capture(Stream* stream);

  // The streams whose marks are waited for.
  std::vector<Stream*> streams() const;
  bool is_valid() const;

 private:
  struct PendingFree {
    Event event;
    Block* block;
  };

  void mark(Block* block, Stream* stream);

  Windows& windows_;
  std::unordered_map<Stream*, std::deque<PendingFree>> pending_;  // a stream's events complete in order
  size_t num_pending_ = 0;
  std::unordered_map<Stream*, std::vector<Block*>> used_in_capture_;
  std::vector<Event> unused_events_;
};

}  // namespace torch_mtia::core
