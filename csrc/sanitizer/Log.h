// What is done to the detector, in the order in which the program did it. No PyTorch.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "../runtime/forks.h"

namespace torch_mtia::sanitizer {

// What a kernel touches is known when it has run. Until then what came later waits behind it. Thread safe; entries are
// applied one at a time and must not call back.
class Log {
 public:
  struct Entry {
    std::function<void()> apply;  // null: not known yet
  };

  template <typename Apply>
  void add(Apply apply) {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) [[likely]]
      return apply();
    entries_.push_back(std::make_shared<Entry>(Entry{std::move(apply)}));
  }

  // A place for an entry that is not known yet.
  std::shared_ptr<Entry> reserve() {
    const std::lock_guard lock(mutex_);
    return entries_.emplace_back(std::make_shared<Entry>());
  }
  void fill(Entry& entry, std::function<void()> apply) {
    const std::lock_guard lock(mutex_);
    entry.apply = std::move(apply);
    while (!entries_.empty() && entries_.front()->apply != nullptr) {
      entries_.front()->apply();
      entries_.pop_front();
    }
    if (entries_.empty()) all_applied_.notify_all();
  }

  // BLOCKS until everything is applied, but no longer than `at_most`: a device that is lost runs no kernels.
  void wait(std::chrono::seconds at_most) {
    std::unique_lock lock(mutex_);
    all_applied_.wait_for(lock, at_most, [&] { return entries_.empty(); });
  }

  // What is there is never applied, nor what is filled in later.
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    all_applied_.notify_all();
  }

  // Of one that lives as long as the process.
  void hold_at_forks(runtime::ForkOrder order) { runtime::hold_at_forks(order, mutex_); }
  // In a forked child, which holds the mutex: none of the kernels runs here that entries wait for, nor do the threads
  // that wait for entries. What entries refer to dies with the process: it may need other locks that are held.
  void abandon() noexcept {
    entries_.swap(abandoned_);
    std::construct_at(&all_applied_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_applied_;
  std::deque<std::shared_ptr<Entry>> entries_;
  std::deque<std::shared_ptr<Entry>> abandoned_;
};

}  // namespace torch_mtia::sanitizer
