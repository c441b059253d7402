// The windows of running work: see Note [Memory of running work] in BlockAllocator.h.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "Block.h"

namespace torch_mtia::core {

// A block that is freed while a window is open becomes free when this window and those before it are closed: work that
// uses the block may be behind each of their items. Windows that open later are of items behind that work, so a stream
// of items that overlap does not hold the block back for ever.
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

 private:
  Window* latest(Stream* stream) noexcept;  // null: none is open

  std::unordered_map<Stream*, std::deque<Window>> windows_;  // in the order of opening; the first one is open
  size_t num_windows_ = 0;
  WindowId last_ = 0;
};

}  // namespace torch_mtia::core
