// A lock that costs two atomic instructions without contention, a third of std::mutex. Every allocation of a tensor
// takes it twice.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_mtia::core {

// Meets the requirements of Lockable. Waiting threads sleep.
class SmallMutex {
 public:
  void lock() noexcept {
    uint32_t free = kFree;
    if (state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire, std::memory_order_relaxed)) [[likely]]
      return;
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) state_.wait(kWaitedFor);
  }
  bool try_lock() noexcept {
    uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) [[unlikely]]
      state_.notify_one();
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kLocked = 1;
  static constexpr uint32_t kWaitedFor = 2;
  std::atomic<uint32_t> state_{kFree};
};

}  // namespace torch_mtia::core
