// What the process does when it forks. No PyTorch.
//
// Note [Forks]
// The child of a fork has one thread. A mutex that another thread held at the fork stays locked there for ever, so a
// fork waits for the mutexes that a child may need, and holds them until both processes go on. A child needs them to
// drop what it has inherited (tensors, pinned memory, streams, events, graphs, generators) and to ask for what needs no
// device (is_pinned, statistics, error messages). Child processes such as the workers of a DataLoader do both.
//
// This is the one list of such mutexes: `hold_at_forks(order, mutex)`, once, for a mutex that lives as long as the
// process. Two kinds of mutexes must not be on it. One that is held while its thread waits for the device or for
// Python's interpreter lock: the forking thread has that lock. And one that is held for long, as while a driver
// initializes: what it protects is given up in the child instead, by a function of `in_forked_children`.
//
// The driver below needs no entry: its functions refuse in the child before they take a lock.
#pragma once

namespace torch_mtia::runtime {

// The order in which a fork takes the mutexes: one that is held while another one is taken comes first. Those of one
// order are never held together.
enum class ForkOrder : int {
  kAllocator,  // a BlockAllocator; it calls the driver, and tells the observer
  kHistory,    // of a BlockAllocator
  kObserver,   // the first of the observer's (csrc/sanitizer)
  kObserved,   // those that are taken with it held
  kTrace,      // of the profiler
  kTable,      // what is held for a look-up only
  kSettings,   // the loader's: every error message asks for the driver's name
};

// `mutex` is held while the process forks. Thread safe; the caller may hold other mutexes of the list. Throws
// std::bad_alloc.
template <typename Mutex>
void hold_at_forks(ForkOrder order, Mutex& mutex);

// `function` is called in each child, before any other code of the child, with the mutexes held. It must not throw.
void in_forked_children(void (*function)());

// Whether this process was forked from one that had initialized the driver, or was about to: nothing of the device is
// here, and what belongs to it is dropped as it is. One atomic load.
bool is_forked() noexcept;
// Throws DriverError in such a process. For what would otherwise wait for a thread that is not here.
void check_not_forked();

namespace detail {
void add_at_forks(ForkOrder order, void* mutex, void (*lock)(void* mutex), void (*unlock)(void* mutex));
}

template <typename Mutex>
void hold_at_forks(ForkOrder order, Mutex& mutex) {
  detail::add_at_forks(
      order, &mutex, [](void* held) { static_cast<Mutex*>(held)->lock(); },
      [](void* held) { static_cast<Mutex*>(held)->unlock(); });
}

}  // namespace torch_mtia::runtime
