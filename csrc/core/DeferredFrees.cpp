// The allocator's lock is held in all of this file: see Note [Locks of the allocator] in BlockAllocator.cpp.
#include "DeferredFrees.h"

#include <algorithm>
#include <iterator>

#include "Stream.h"
#include "Waits.h"

namespace torch_mtia::core {

WindowId Windows::open(Stream* stream) {
  windows_.emplace(stream, Window{.id = last_ + 1});
  return ++last_;
}

void Windows::close(Stream* stream, WindowId id) noexcept {
  auto window = windows_.lower_bound(stream);
  while (window->second.id != id) ++window;
  window->second.closed = true;
}

std::optional<Windows::Window> Windows::take_closed(Stream* stream) noexcept {
  const auto [first, end] = windows_.equal_range(stream);
  if (first == end || !first->second.closed) return std::nullopt;
  std::optional<Window> window(std::move(first->second));
  windows_.erase(first);
  return window;
}

bool Windows::defer_use(Block* block, Stream* stream) {
  Window* window = latest(stream);
  if (window == nullptr) return false;
  window->used.push_back(block);
  return true;
}

bool Windows::is_valid() const {
  return std::all_of(windows_.begin(), windows_.end(), [this](const auto& entry) {
    const auto& [stream, window] = entry;
    if (windows_.lower_bound(stream)->second.closed) return false;
    for (const Block* block = window.freed; block != nullptr; block = block->next_free) {
      if (block->stream != stream || !block->in_use || block->allocated) return false;
    }
    return true;
  });
}

Windows::Window* Windows::latest(Stream* stream) noexcept {
  const auto [first, end] = windows_.equal_range(stream);
  return first == end ? nullptr : &std::prev(end)->second;
}

void PendingFrees::add(Block* block) noexcept {
  try {
    for (Stream* stream : block->other_streams) {
      if (stream->graph() != nullptr) {  // an event would be part of the graph
        used_in_capture_.emplace(stream, block);
        ++block->pending_events;
        continue;
      }
      // An event that is recorded inside an item of the stream stands for that item, not for items queued after it.
      if (RunningWork::on_this_thread(stream) && windows_.defer_use(block, stream)) {
        ++block->pending_events;
        continue;
      }
      mark(block, stream);
    }
  } catch (...) {
    // It is not known when that stream is done (the device is lost, this is a forked child, or the host is out of
    // memory). One event too many: the block is never reused.
    ++block->pending_events;
  }
}

// The block is released only after the present work of the stream.
void PendingFrees::mark(Block* block, Stream* stream) {
  if (unused_events_.empty()) unused_events_.emplace_back(/*enable_timing=*/false);
  unused_events_.back().record(*stream);
  if (unused_events_.back().query()) return;  // nothing to wait for
  pending_.emplace(stream, PendingFree{std::move(unused_events_.back()), block});
  unused_events_.pop_back();
  ++block->pending_events;
}

bool PendingFrees::mark_late(Block* block, Stream* stream) noexcept {
  try {
    if (stream->graph() != nullptr) {
      used_in_capture_.emplace(stream, block);
      return false;
    }
    mark(block, stream);
  } catch (...) {
    return false;  // as in add
  }
  return --block->pending_events == 0;
}

StreamQueues<Block*> PendingFrees::end_capture(Stream* stream) noexcept {
  StreamQueues<Block*> blocks;
  for (auto [next, end] = used_in_capture_.equal_range(stream); next != end;) {
    blocks.insert(used_in_capture_.extract(next++));
  }
  return blocks;
}

bool PendingFrees::is_valid() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const auto& entry) { return entry.second.block->pending_events > 0; });
}

}  // namespace torch_mtia::core
