#include "Windows.h"

#include <algorithm>
#include <utility>

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

Windows::Window* Windows::latest(Stream* stream) noexcept {
  const auto found = windows_.find(stream);
  return found == windows_.end() || found->second.empty() ? nullptr : &found->second.back();
}

}  // namespace torch_mtia::core
