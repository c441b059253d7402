// The queue of one stream and the thread that runs it: how threads start, sleep, and are woken.
//
// Note [Who runs an item]
// The items of a stream run one after another, each either on the thread that launches it or on the stream's executor
// thread. One word decides, `busy_`: bit 0 says that a launching thread runs an item now, the bits above count the
// items that are queued or running on the executor, and the top half counts threads that wait. A launching thread may
// run its item itself if it can move the word from 0 to 1, which proves that nothing is before it; whoever launches in
// the meantime finds the word not 0 and queues, and the executor does not start until bit 0 is clear. So the path of a
// small item on an idle stream is two atomic operations on one word, and takes no lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "../../processor/assertion.h"
#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Runs `body`, which must not throw, on a new detached thread. Signals sent to the process never reach it, so they
// always reach a thread of the application. Throws std::system_error if there can be no further thread.
void start_thread(const std::string& name, std::function<void()> body);

// Threads that sleep until another one wakes all of them, as with a condition variable. All functions are called with
// the lock of the owner held.
//
// Note [Woken on the core of the waker]
// A thread that waits for a stream is woken by one that has nothing to do next. Where every core is taken, because the
// helpers of the last parallel region spin for some 10 ms yet, a futex leaves the woken thread where it slept, behind
// such a helper: up to a time slice, 4 ms where the timer ticks 250 times a second. Writing into a pipe tells the
// kernel that the writer is about to sleep, and it lets the woken thread have that core.
class WaitQueue {
 public:
  // Gives the lock up meanwhile. May also return without having been woken.
  void wait(std::unique_lock<std::mutex>& lock) noexcept;
  void wake_all() noexcept;

 private:
  struct Sleeper;
  Sleeper* first_ = nullptr;
};

// The executor's own copy of a queued work item. Its argument block follows it.
struct alignas(16) QueueSlot {
  QueueSlot* next = nullptr;
  size_t capacity = 0;  // bytes of the argument block
  mtia_work work{};

  // Moves `source` with its argument block in. What is only valid during the launch (the spans) is not copied.
  void fill(const mtia_work& source) noexcept;
  // Destroys the argument block.
  void clear() noexcept;
};

// An allocator: slots come from the heap and from a bounded free list. Not thread safe but for `create` and `destroy`.
class QueueSlotPool {
 public:
  // A recycled slot for `args_size` bytes; null: there is none, `create` one.
  QueueSlot* take(size_t args_size) noexcept;
  // False: the slot does not fit here, `destroy` it.
  bool recycle(QueueSlot* slot) noexcept;

  static QueueSlot* create(size_t args_size);  // throws std::bad_alloc
  static void destroy(QueueSlot* slot) noexcept;

 private:
  QueueSlot* free_ = nullptr;
  size_t num_free_ = 0;
};

// Note [Threads that are never joined]
// An executor thread starts with the first item that is queued, never by creating a stream or by work that runs on its
// launching thread. It is detached and lives until the process ends; an Executor is therefore never destroyed. At exit
// the thread is usually blocked on a condition variable that nobody destroys, which is harmless.
class Executor {
 public:
  // Runs one queued item on the executor thread. Must not throw.
  using Runner = void (*)(void* owner, const mtia_work& work) noexcept;

  // Runs on the executor thread when it ran work for several threads and has had none for a tenth of a second.
  using Idler = void (*)(void* owner) noexcept;

  // `delay_seed`: 0, or see Note [Delays].
  Executor(Runner runner, Idler idler, void* owner, std::string thread_name, uint64_t delay_seed)
      : runner_(runner),
        idler_(idler),
        owner_(owner),
        thread_name_(std::move(thread_name)),
        delay_(delay_seed == 0 ? nullptr : std::make_unique<Delay>(delay_seed)) {
    if (delay_ != nullptr) busy_ = kWaiter;  // for ever: so nobody runs an item inline
  }

  // Note [Delays]
  // A program that forgets to synchronize often works by luck, because the work was done already. With delays it fails:
  // the executor begins a queue only when somebody waits for the stream, on the host or on another stream, or after a
  // random time. What is waited for runs at once, what should have been waited for too does not. Nothing runs on its
  // launching thread.
  void expedite();  // somebody waits for everything that is queued

  // True: the stream is idle and the caller runs one item now, then calls `leave`.
  bool try_enter() noexcept {
    uint64_t idle = 0;
    return busy_.compare_exchange_strong(idle, kInline, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void leave() noexcept {
    const uint64_t busy = busy_.fetch_sub(kInline, std::memory_order_release);
    MTIA_ASSERT((busy & kInline) != 0);
    if (busy != kInline) [[unlikely]]
      hand_over();
  }

  // Nothing queued, nothing running.
  bool is_idle() const noexcept { return (busy_.load(std::memory_order_acquire) & ~kWaiters) == 0; }

  // Where the queue stands: everything submitted until then.
  struct Position {
    uint64_t submitted = 0;
    bool inline_item = false;  // an item was running on a launching thread
  };

  // Queues the item; the position includes it. Starts the thread if need be. Throws; then the item is not queued.
  Position push(const mtia_work& work);

  Position position();
  // Blocks until everything before `position` is done.
  void wait(const Position& position);

 private:
  static constexpr uint64_t kInline = 1;
  static constexpr uint64_t kQueued = 2;
  static constexpr uint64_t kWaiter = uint64_t{1} << 40;
  static constexpr uint64_t kWaiters = ~(kWaiter - 1);
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  struct Delay {
    explicit Delay(uint64_t seed) : random(seed) {}
    std::mt19937_64 random;
    uint64_t expedited = 0;  // somebody waits for so many items
    std::condition_variable was_expedited;
  };

  void hand_over() noexcept;
  void run_queue() noexcept;
  // With `mutex_`; what is given the lock gives it up while it sleeps.
  bool is_valid() const noexcept;
  QueueSlot* next_item(std::unique_lock<std::mutex>& lock) noexcept;
  void hold_back(std::unique_lock<std::mutex>& lock) noexcept;
  void sleep(std::unique_lock<std::mutex>& lock) noexcept;
  void finish_item(QueueSlot* slot) noexcept;

  const Runner runner_;
  const Idler idler_;
  void* const owner_;
  const std::string thread_name_;

  alignas(64) std::atomic<uint64_t> busy_{0};

  // Held only for moments, never while an item runs.
  alignas(64) std::mutex mutex_;
  std::condition_variable work_arrived_;
  WaitQueue work_done_;
  QueueSlot* first_ = nullptr;
  QueueSlot* last_ = nullptr;
  QueueSlotPool slots_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  // The lowest count of completed items that a waiter needs: only then the waiters are woken.
  uint64_t wanted_ = kNobody;
  bool started_ = false;
  bool asleep_ = false;
  bool keeps_threads_ = false;          // since the idler last ran
  const std::unique_ptr<Delay> delay_;  // null: none
};

}  // namespace torch_mtia::runtime::host
