#include "AllocatorHistory.h"

#include <chrono>

namespace torch_mtia::core {

void AllocatorHistory::start(HistoryOptions options) {
  auto shared = std::make_shared<const HistoryOptions>(std::move(options));
  std::deque<TraceEntry> forgotten;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  forgotten.swap(entries_);
  options_ = std::move(shared);
  enabled_.store(options_->enabled, std::memory_order_relaxed);
}

TraceContext AllocatorHistory::gather(std::function<TraceContext()> HistoryOptions::* how) const noexcept {
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

void AllocatorHistory::add(TraceAction action, uint64_t address, size_t size, const Stream* stream, PoolId pool,
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

std::vector<TraceEntry> AllocatorHistory::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace torch_mtia::core
