#include "executor.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "work.h"

namespace torch_mtia::runtime::host {

// Threads -------------------------------------------------------------------------------------------------------------

namespace {

// Blocks the calling thread's signals for a scope; a thread started in it inherits that. Those that the code itself
// raises stay, for the sake of crash handlers.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int raised_by_code : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
      sigdelset(&blocked, raised_by_code);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void start_thread(const std::string& name, std::function<void()> body) {
  const BlockedSignals blocked;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name.c_str());
  thread.detach();
}

// Waiting -------------------------------------------------------------------------------------------------------------

// Of one thread; empty when nobody has written to it. Has no destructor, so it is there until the thread has ended.
class Pipe {
 public:
  // Programs close files that they do not know, and the numbers are other files' then.
  void open() noexcept {
    if (is_whole()) return;
    close_ours();
    int ends[2];
    struct stat file;
    if (is_over_ || pipe2(ends, O_CLOEXEC) != 0) return forget();
    fstat(ends[0], &file);
    read_end_ = ends[0];
    write_end_ = ends[1];
    number_ = file.st_ino;
  }
  // For good: destructors of the thread's other variables may still wait.
  void close() noexcept {
    close_ours();
    forget();
    is_over_ = true;
  }

  // False without a pipe: for want of file descriptors, at the end of the thread, or because the program has closed it.
  // That wakes nobody while a forked child has the pipe, too, so the thread looks from time to time.
  bool read() noexcept {
    constexpr int kLookAgain = 100;  // milliseconds
    while (is_whole()) {
      pollfd readable{read_end_, POLLIN, 0};
      if (poll(&readable, 1, kLookAgain) <= 0) continue;
      char byte;
      return is_ours(read_end_) && ::read(read_end_, &byte, 1) == 1;
    }
    return false;
  }
  // Nothing without the pipe: its number may be another file's by now.
  void write() noexcept {
    const char byte = 0;
    while (is_ours(write_end_) && ::write(write_end_, &byte, 1) < 0 && errno == EINTR) {
    }
  }

 private:
  bool is_whole() const noexcept { return is_ours(read_end_) && is_ours(write_end_); }
  bool is_ours(int end) const noexcept {
    struct stat file;
    return end >= 0 && fstat(end, &file) == 0 && S_ISFIFO(file.st_mode) && file.st_ino == number_;
  }
  void close_ours() noexcept {
    for (const int end : {read_end_, write_end_}) {
      if (is_ours(end)) ::close(end);
    }
  }
  void forget() noexcept { read_end_ = write_end_ = -1; }

  int read_end_ = -1;
  int write_end_ = -1;
  ino_t number_ = 0;
  bool is_over_ = false;
};

namespace {

constinit thread_local Pipe pipe_of_thread;

struct ClosesPipe {
  ~ClosesPipe() { pipe_of_thread.close(); }
};

}  // namespace

struct WaitQueue::Sleeper {
  Pipe& pipe;
  Sleeper* next;
  bool is_woken = false;
};

void WaitQueue::wait(std::unique_lock<std::mutex>& lock) noexcept {
  [[maybe_unused]] thread_local const ClosesPipe at_end_of_thread;
  pipe_of_thread.open();
  Sleeper self{pipe_of_thread, first_};
  first_ = &self;
  lock.unlock();
  // Without a pipe the caller looks again and again.
  if (!self.pipe.read()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  lock.lock();
  if (self.is_woken) return;
  Sleeper** link = &first_;
  while (*link != &self) link = &(*link)->next;
  *link = self.next;
}

void WaitQueue::wake_all() noexcept {
  for (Sleeper* sleeper = first_; sleeper != nullptr; sleeper = sleeper->next) {
    sleeper->is_woken = true;
    sleeper->pipe.write();
  }
  first_ = nullptr;
}

// Queues --------------------------------------------------------------------------------------------------------------

namespace {

// Argument blocks up to this size need no allocation once a stream has warmed up.
constexpr size_t kRecycledArguments = 512;
// Slots in the free list of a stream.
constexpr size_t kRecycledSlots = 1024;

// Starting the threads again is expensive: the kernel puts new ones on the core of their parent, and may take
// milliseconds to spread them. So the time is long against the pauses between the steps of a computation.
constexpr std::chrono::milliseconds kIdleDelay(100);

}  // namespace

void QueueSlot::fill(const mtia_work& source) noexcept {
  void* block = this + 1;
  move_arguments(block, source);
  work = source;
  work.args = block;
}

void QueueSlot::clear() noexcept {
  if (work.destroy != nullptr) work.destroy(work.args);
}

QueueSlot* QueueSlotPool::take(size_t args_size) noexcept {
  if (free_ == nullptr || args_size > kRecycledArguments) return nullptr;
  QueueSlot* slot = free_;
  free_ = slot->next;
  --num_free_;
  return slot;
}

bool QueueSlotPool::recycle(QueueSlot* slot) noexcept {
  if (slot->capacity != kRecycledArguments || num_free_ == kRecycledSlots) return false;
  slot->next = free_;
  free_ = slot;
  ++num_free_;
  return true;
}

QueueSlot* QueueSlotPool::create(size_t args_size) {
  const size_t capacity = std::max(args_size, kRecycledArguments);
  void* memory = ::operator new(sizeof(QueueSlot) + capacity);  // aligned to 16, as argument blocks are at most
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= alignof(QueueSlot));
  auto* slot = ::new (memory) QueueSlot;
  slot->capacity = capacity;
  return slot;
}

void QueueSlotPool::destroy(QueueSlot* slot) noexcept {
  slot->~QueueSlot();
  ::operator delete(slot);
}

Executor::Position Executor::push(const mtia_work& work) {
  QueueSlot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!started_) start_thread(thread_name_, [this] { run_queue(); });  // see Note [Threads that are never joined]
    started_ = true;
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
    MTIA_ASSERT(is_valid());
  }
  if (wake) work_arrived_.notify_one();
  return position;
}

// The queue, the two counts of items and the word that decides say the same.
bool Executor::is_valid() const noexcept {
  const uint64_t unfinished = submitted_ - completed_;
  if (completed_ > submitted_ || (first_ == nullptr) != (last_ == nullptr)) return false;
  if (first_ == nullptr ? unfinished > 1 : last_->next != nullptr) return false;
  return (busy_.load(std::memory_order_acquire) & ~kWaiters) / kQueued == unfinished;
}

Executor::Position Executor::position() {
  const std::lock_guard lock(mutex_);
  return {submitted_, (busy_.load(std::memory_order_acquire) & kInline) != 0};
}

void Executor::expedite() {
  if (delay_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  delay_->expedited = submitted_;
  delay_->was_expedited.notify_one();
}

void Executor::wait(const Position& position) {
  std::unique_lock lock(mutex_);
  if (delay_ != nullptr) {
    delay_->expedited = std::max(delay_->expedited, position.submitted);
    delay_->was_expedited.notify_one();
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

// An item that ran inline is done, and others are queued, or wait for it.
void Executor::hand_over() noexcept {
  const std::lock_guard lock(mutex_);
  asleep_ = false;
  work_arrived_.notify_one();
  wanted_ = kNobody;
  work_done_.wake_all();
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
  MTIA_ASSERT(is_valid() && (busy_.load(std::memory_order_acquire) & kInline) == 0);
  QueueSlot* slot = first_;
  first_ = slot->next;
  if (first_ == nullptr) last_ = nullptr;
  return slot;
}

// Until somebody waits for the first item, or it has been held back for long enough. See Note [Delays].
void Executor::hold_back(std::unique_lock<std::mutex>& lock) noexcept {
  const std::chrono::milliseconds delay(std::uniform_int_distribution<int>(20, 100)(delay_->random));
  const auto item = completed_ + 1;
  delay_->was_expedited.wait_for(lock, delay, [&] { return delay_->expedited >= item; });
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
  MTIA_ASSERT(is_valid());
  if (completed_ >= wanted_) {
    wanted_ = kNobody;
    work_done_.wake_all();
  }
}

}  // namespace torch_mtia::runtime::host
