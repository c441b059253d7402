#include "executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "thread.h"

namespace torch_mtia::runtime::host {
namespace {

// Starting the threads again is dear: the kernel puts new ones on the core of their parent, and may take milliseconds
// to spread them. So the time is long against the pauses between the steps of a computation.
constexpr std::chrono::milliseconds kIdleDelay(100);

}  // namespace

Executor::Position Executor::push(const mtia_work& work) {
  QueueSlot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!started_) start_thread();
    slot = slots_.take(work.args_size);
  }
  if (slot == nullptr) slot = QueueSlotPool::create(work.args_size);
  slot->fill(work);  // the owner's code, so not under the lock

  Position position;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    slot->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = slot;
    last_ = slot;
    position.submitted = ++submitted_;
    position.inline_item = (busy_.fetch_add(kQueued, std::memory_order_acq_rel) & kInline) != 0;
    // Whoever runs an item inline now wakes the executor in `hand_over`.
    wake = asleep_ && !position.inline_item;
    if (wake) asleep_ = false;
  }
  if (wake) work_arrived_.notify_one();
  return position;
}

Executor::Position Executor::position() {
  const std::lock_guard lock(mutex_);
  return {submitted_, (busy_.load(std::memory_order_acquire) & kInline) != 0};
}

void Executor::urge() {
  if (delay_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  delay_->urged = submitted_;
  delay_->was_urged.notify_one();
}

void Executor::wait(const Position& position) {
  std::unique_lock lock(mutex_);
  if (delay_ != nullptr) {
    delay_->urged = std::max(delay_->urged, position.submitted);
    delay_->was_urged.notify_one();
  }
  // From here on `leave` comes to `hand_over`, and no further item runs inline.
  busy_.fetch_add(kWaiter, std::memory_order_acq_rel);
  const auto done = [&] {
    return completed_ >= position.submitted &&
           !(position.inline_item && (busy_.load(std::memory_order_acquire) & kInline) != 0);
  };
  while (!done()) {
    wanted_ = std::min(wanted_, position.submitted);
    work_done_.wait(lock);
  }
  busy_.fetch_sub(kWaiter, std::memory_order_release);
}

// An item that ran inline is done, and others queued or wait behind it.
void Executor::hand_over() noexcept {
  const std::lock_guard lock(mutex_);
  asleep_ = false;
  work_arrived_.notify_one();
  wanted_ = kNobody;
  work_done_.wake_all();
}

void Executor::start_thread() {
  host::start_thread(thread_name_, [this] { run_queue(); });  // see Note [Threads that are never joined]
  started_ = true;
}

void Executor::run_queue() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    QueueSlot* slot = next_item(lock);
    lock.unlock();
    runner_(owner_, slot->work);
    const bool used_threads = slot->work.num_threads > 1;
    slot->clear();
    lock.lock();
    keeps_threads_ = keeps_threads_ || used_threads;
    finish_item(slot);
  }
}

QueueSlot* Executor::next_item(std::unique_lock<std::mutex>& lock) noexcept {
  while (first_ == nullptr || (busy_.load(std::memory_order_acquire) & kInline) != 0) {
    sleep(lock);
  }
  if (delay_ != nullptr) hold_back(lock);
  QueueSlot* slot = first_;
  first_ = slot->next;
  if (first_ == nullptr) last_ = nullptr;
  return slot;
}

// Until somebody waits for the first item, or it has been held back for long enough. See Note [Delays].
void Executor::hold_back(std::unique_lock<std::mutex>& lock) noexcept {
  const std::chrono::milliseconds delay(std::uniform_int_distribution<int>(20, 100)(delay_->random));
  const auto item = completed_ + 1;
  delay_->was_urged.wait_for(lock, delay, [&] { return delay_->urged >= item; });
}

// Until work may have arrived.
void Executor::sleep(std::unique_lock<std::mutex>& lock) noexcept {
  asleep_ = true;
  if (!keeps_threads_) {
    work_arrived_.wait(lock);
  } else if (work_arrived_.wait_for(lock, kIdleDelay) == std::cv_status::timeout) {
    keeps_threads_ = false;
    lock.unlock();
    idler_(owner_);
    lock.lock();
  }
  asleep_ = false;
}

void Executor::finish_item(QueueSlot* slot) noexcept {
  if (!slots_.recycle(slot)) QueueSlotPool::destroy(slot);
  ++completed_;
  busy_.fetch_sub(kQueued, std::memory_order_release);
  if (completed_ >= wanted_) {
    wanted_ = kNobody;
    work_done_.wake_all();
  }
}

}  // namespace torch_mtia::runtime::host
