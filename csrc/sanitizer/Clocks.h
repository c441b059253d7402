// What has happened before what. No PyTorch.
//
// Note [Clocks]
// Each stream, and the host, counts what it does. A clock says of every one of them how far it has come for certain:
// the clock of a stream grows by what it waits for, and by what the host knows when it submits. An item at time t of
// timeline i happens before all that is submitted to a timeline whose clock is at t or later for i.
//
// The host has one clock for all of its threads. What one thread has waited for is over when another one submits, in
// whatever way they talk to each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torch_mtia::sanitizer {

class Clock {
 public:
  uint64_t at(size_t timeline) const { return timeline < times_.size() ? times_[timeline] : 0; }
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }
  uint64_t advance(size_t timeline) {
    if (timeline >= times_.size()) times_.resize(timeline + 1);
    return ++times_[timeline];
  }

 private:
  std::vector<uint64_t> times_;
};

// Streams are known by their addresses, events by their handles, which outlive a move.
class Clocks {
 public:
  // The timeline of a stream: a number from 0 on.
  size_t timeline_of(const void* stream) {
    const auto [found, is_new] = timelines_.try_emplace(stream, clocks_.size());
    if (is_new) clocks_.emplace_back();
    return found->second;
  }
  const Clock& of(size_t timeline) const { return clocks_[timeline]; }

  // Something is submitted to a stream; its time.
  uint64_t submit(size_t timeline) {
    clocks_[timeline].join(host_);
    return clocks_[timeline].advance(timeline);
  }

  void record(const void* event, size_t timeline) {
    clocks_[timeline].join(host_);
    events_[event] = clocks_[timeline];
  }
  void wait(size_t timeline, const void* event) {
    const auto found = events_.find(event);
    if (found != events_.end()) clocks_[timeline].join(found->second);
  }
  void forget(const void* event) { events_.erase(event); }

  void host_waits_for_stream(size_t timeline) { host_.join(clocks_[timeline]); }
  void host_waits_for_event(const void* event) {
    const auto found = events_.find(event);
    if (found != events_.end()) host_.join(found->second);
  }

 private:
  std::unordered_map<const void*, size_t> timelines_;
  std::vector<Clock> clocks_;
  std::unordered_map<const void*, Clock> events_;
  Clock host_;
};

}  // namespace torch_mtia::sanitizer
