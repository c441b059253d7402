// The allocator's lock is held in all of this file: see Note [Locks of the allocator] in BlockAllocator.cpp.
#include "DeferredFrees.h"

#include <algorithm>

#include "Stream.h"
#include "Waits.h"

namespace torch_mtia::core {

WindowId Windows::open(Stream* stream) {
  windows_[stream].push_back({.id = last_ + 1});
  ++num_windows_;
  return ++last_;
}

void Windows::close(Stream* stream, WindowId id) noexcept {
  std::deque<Window>& open = windows_.find(stream)->second;
  std::find_if(open.begin(), open.end(), [id](const Window& window) { return window.id == id; })->closed = true;
}

std::optional<Windows::Window> Windows::take_closed(Stream* stream) noexcept {
  std::deque<Window>& open = windows_.find(stream)->second;
  if (open.empty() || !open.front().closed) return std::nullopt;
  std::optional<Window> window(std::move(open.front()));
  open.pop_front();
  --num_windows_;
  return window;
}

bool Windows::hold_use(Block* block, Stream* stream) {
  Window* window = latest(stream);
  if (window == nullptr) return false;
  window->used.push_back(block);
  return true;
}

std::vector<Stream*> Windows::streams() const {
  std::vector<Stream*> found;
  for (const auto& [stream, open] : windows_) {
    if (!open.empty()) found.push_back(stream);
  }
  return found;
}

bool Windows::is_valid() const {
  size_t count = 0;
  for (const auto& [stream, open] : windows_) {
    count += open.size();
    if (!open.empty() && open.front().closed) return false;
    for (const Window& window : open) {
      for (const Block* block = window.freed; block != nullptr; block = block->next_free) {
        if (block->stream != stream || !block->in_use || block->allocated) return false;
      }
    }
  }
  return count == num_windows_;
}

Windows::Window* Windows::latest(Stream* stream) noexcept {
  const auto found = windows_.find(stream);
  return found == windows_.end() || found->second.empty() ? nullptr : &found->second.back();
}

void PendingFrees::add(Block* block) noexcept {
  try {
    for (Stream* stream : block->other_streams) {
      if (stream->graph() != nullptr) {  // an event would be part of the graph
        used_in_capture_[stream].push_back(block);
        ++block->pending_events;
        continue;
      }
      // Recorded inside an item of the stream, an event stands for that item, not for items queued after it.
      if (RunningWork::on_this_thread(stream) && windows_.hold_use(block, stream)) {
        ++block->pending_events;
        continue;
      }
      mark(block, stream);
    }
  } catch (...) {
    // Nobody will know when that stream is done (the device is lost, this is a forked child, or the host is out of
    // memory). One event too many keeps the block from ever being used again.
    ++block->pending_events;
  }
}

// The block is not released before the stream has got to where it is now.
void PendingFrees::mark(Block* block, Stream* stream) {
  if (unused_events_.empty()) unused_events_.emplace_back(/*enable_timing=*/false);
  unused_events_.back().record(*stream);
  if (unused_events_.back().query()) return;  // nothing to wait for
  pending_[stream].push_back({std::move(unused_events_.back()), block});
  unused_events_.pop_back();
  ++num_pending_;
  ++block->pending_events;
}

bool PendingFrees::mark_late(Block* block, Stream* stream) noexcept {
  try {
    if (stream->graph() != nullptr) {
      used_in_capture_[stream].push_back(block);
      return false;
    }
    mark(block, stream);
  } catch (...) {
    return false;  // as in add
  }
  return --block->pending_events == 0;
}

std::vector<Block*> PendingFrees::end_capture(Stream* stream) {
  auto used = used_in_capture_.extract(stream);
  return used ? std::move(used.mapped()) : std::vector<Block*>();
}

std::vector<Stream*> PendingFrees::streams() const {
  std::vector<Stream*> found;
  for (const auto& [stream, frees] : pending_) {
    if (!frees.empty()) found.push_back(stream);
  }
  return found;
}

bool PendingFrees::is_valid() const {
  size_t count = 0;
  for (const auto& [stream, frees] : pending_) {
    count += frees.size();
    for (const PendingFree& each : frees) {
      if (each.block->pending_events <= 0) return false;
    }
  }
  return count == num_pending_;
}

}  // namespace torch_mtia::core
