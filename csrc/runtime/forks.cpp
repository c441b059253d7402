#include "forks.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace torch_mtia::runtime {
namespace {

struct Held {
  ForkOrder order;
  void* mutex;
  void (*lock)(void* mutex);
  void (*unlock)(void* mutex);
};

// Leaked: a process may fork until it ends.
class Forks {
 public:
  static Forks& get() {
    static Forks& instance = *std::make_unique<Forks>().release();
    return instance;
  }

  void add(const Held& held) {
    const std::lock_guard lock(mutex_);
    install_locked();
    const auto position = std::upper_bound(held_.begin(), held_.end(), held.order,
                                           [](ForkOrder order, const Held& other) { return order < other.order; });
    held_.insert(position, held);
    ++version_;
  }
  void add(void (*function)()) {
    const std::lock_guard lock(mutex_);
    install_locked();
    in_children_.push_back(function);
  }

 private:
  void install_locked() {
    if (is_installed_) return;
    if (pthread_atfork([] { get().before(); }, [] { get().in_parent(); }, [] { get().in_child(); }) != 0)
      throw std::bad_alloc();
    is_installed_ = true;
  }

  // The list's own mutex is the last one, because mutexes are added with others held. When the list has grown in
  // between, all is taken anew.
  void before() {
    forking_.lock();
    while (true) {
      size_t version = 0;
      {
        const std::lock_guard lock(mutex_);
        taken_ = held_;
        version = version_;
      }
      for (const Held& held : taken_) held.lock(held.mutex);
      mutex_.lock();
      if (version == version_) return;
      mutex_.unlock();
      unlock_all();
    }
  }
  void unlock_all() {
    for (auto held = taken_.rbegin(); held != taken_.rend(); ++held) held->unlock(held->mutex);
  }
  void in_parent() {
    mutex_.unlock();
    unlock_all();
    forking_.unlock();
  }
  void in_child() {
    for (void (*function)() : in_children_) function();
    in_parent();
  }

  std::mutex forking_;       // one thread at a time
  std::vector<Held> taken_;  // of that thread
  std::mutex mutex_;         // of what follows
  bool is_installed_ = false;
  size_t version_ = 0;
  std::vector<Held> held_;  // in order
  std::vector<void (*)()> in_children_;
};

}  // namespace

void detail::add_at_forks(ForkOrder order, void* mutex, void (*lock)(void* mutex), void (*unlock)(void* mutex)) {
  Forks::get().add({order, mutex, lock, unlock});
}

void in_forked_children(void (*function)()) {
  Forks::get().add(function);
}

}  // namespace torch_mtia::runtime
