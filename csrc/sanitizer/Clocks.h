// What has happened before what. No PyTorch.
//
// Note [Clocks]
// Each stream, and the host, counts what it does. A clock says of every one of them how far it has come for certain:
// the clock of a stream grows by what it waits for, and by what the host knows when it submits. An item at time t of
// timeline i happens before all that is submitted to a timeline whose clock is at t or later for i.
//
// The host has one clock for all of its threads. What one thread has waited for is over when another one submits, in
// whatever way they talk to each other. What it does itself to memory is behind what it has waited for, and before all
// that is submitted later.
//
// A function of the host that a stream calls has a timeline of its own: behind what the stream was given before, before
// what it is given later. What it submits to other streams is behind it.
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
  void set(size_t timeline, uint64_t time) {
    if (timeline >= times_.size()) times_.resize(timeline + 1);
    times_[timeline] = time;
  }

 private:
  std::vector<uint64_t> times_;
};

// Streams are known by their addresses, events by their handles, which outlive a move.
class Clocks {
 public:
  static constexpr size_t kHost = 0;

  // The timeline of a stream, or of the host, which has none (null).
  size_t timeline_of(const void* stream) {
    const auto [found, is_new] = timelines_.try_emplace(stream, clocks_.size());
    if (is_new) clocks_.emplace_back();
    return found->second;
  }
  const Clock& of(size_t timeline) const { return clocks_[timeline]; }

  // Something is submitted to a stream; its time.
  uint64_t submit(size_t timeline) {
    clocks_[timeline].join(clocks_[kHost]);
    return clocks_[timeline].advance(timeline);
  }
  // From a function of the host.
  uint64_t submit(size_t timeline, size_t function) {
    clocks_[timeline].join(clocks_[function]);
    return submit(timeline);
  }

  // The timeline of a function that is submitted to the stream of a timeline. All that it does has its present time.
  size_t begin_function(size_t timeline) {
    auto& unused = unused_[timeline];
    const size_t function = unused.empty() ? clocks_.size() : unused.back();
    unused.empty() ? void(clocks_.emplace_back()) : unused.pop_back();
    const uint64_t time = clocks_[function].at(function) + 1;
    clocks_[timeline].join(clocks_[kHost]);
    clocks_[timeline].set(function, time);
    clocks_[function] = clocks_[timeline];
    return function;
  }
  void end_function(size_t timeline, size_t function) { unused_[timeline].push_back(function); }

  void record(const void* event, size_t timeline) {
    clocks_[timeline].join(clocks_[kHost]);
    events_[event] = clocks_[timeline];
  }
  void wait(size_t timeline, const void* event) {
    const auto found = events_.find(event);
    if (found != events_.end()) clocks_[timeline].join(found->second);
  }
  void forget(const void* event) { events_.erase(event); }

  void host_waits_for_stream(size_t timeline) { clocks_[kHost].join(clocks_[timeline]); }
  void host_waits_for_event(const void* event) {
    const auto found = events_.find(event);
    if (found != events_.end()) clocks_[kHost].join(found->second);
  }

 private:
  std::unordered_map<const void*, size_t> timelines_{{nullptr, kHost}};
  std::vector<Clock> clocks_{1};
  std::unordered_map<size_t, std::vector<size_t>> unused_;  // timelines of functions that have ended, by their streams'
  std::unordered_map<const void*, Clock> events_;
};

}  // namespace torch_mtia::sanitizer
