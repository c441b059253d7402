// The history of a device's memory, which PyTorch's memory viewer shows. No PyTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "../runtime/forks.h"
#include "BlockAllocator.h"

namespace torch_mtia::core {

// Contexts are gathered before the allocator's lock is taken, because gathering may need a lock of the upper layer's.
// Thread safe.
class AllocatorHistory {
 public:
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  void start(HistoryOptions options);
  // Null: no context is recorded, or the host is out of memory.
  TraceContext context_of_alloc() const noexcept {
    return enabled() ? gather(&HistoryOptions::context_of_alloc) : nullptr;
  }
  TraceContext context_of_free() const noexcept {
    return enabled() ? gather(&HistoryOptions::context_of_free) : nullptr;
  }

  // An entry that finds no memory is dropped.
  void add(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
           const TraceContext& context) noexcept;
  std::vector<TraceEntry> entries() const;

  // See Note [Forks] in runtime/forks.h. Called once.
  void hold_at_forks() { runtime::hold_at_forks(runtime::ForkOrder::kHistory, mutex_); }

 private:
  TraceContext gather(std::function<TraceContext()> HistoryOptions::* how) const noexcept;

  std::atomic<bool> enabled_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const HistoryOptions> options_;
  std::deque<TraceEntry> entries_;
};

inline void AllocatorHistory::start(HistoryOptions options) {
  auto shared = std::make_shared<const HistoryOptions>(std::move(options));
  std::deque<TraceEntry> forgotten;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  forgotten.swap(entries_);
  options_ = std::move(shared);
  enabled_.store(options_->enabled, std::memory_order_relaxed);
}

inline TraceContext AllocatorHistory::gather(std::function<TraceContext()> HistoryOptions::* how) const noexcept {
  try {
    std::shared_ptr<const HistoryOptions> options;
    {
      const std::lock_guard lock(mutex_);
      options = options_;
    }
    const auto& function = (*options).*how;
    return function ? function() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

inline void AllocatorHistory::add(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
                                  const TraceContext& context) noexcept {
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::lock_guard lock(mutex_);
  if (options_ == nullptr || options_->max_entries == 0) return;
  try {
    if (entries_.size() == options_->max_entries) entries_.pop_front();
    entries_.push_back({action, address, size, stream, pool, now.count(), context});
  } catch (const std::bad_alloc&) {
  }
}

inline std::vector<TraceEntry> AllocatorHistory::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace torch_mtia::core
