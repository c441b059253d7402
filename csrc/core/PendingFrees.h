// Freed blocks that other streams may still use (record_stream).
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "Block.h"
#include "Event.h"
#include "Windows.h"

namespace torch_mtia::core {

// A block counts in `pending_events` what has to come before it is free: events that mark where the other streams were
// when it was freed, and, where a stream cannot be marked yet, the time when it can.
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
