// What the allocators do when the process forks: see Note [Forks] in AllocatorState.h.
#include <pthread.h>

#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "AllocatorState.h"

namespace torch_mtia::core {

struct BlockAllocator::State::Forks {
  SmallMutex mutex;
  std::vector<State*> states;  // of all allocators

  // Leaked: a process may fork until it ends.
  static Forks& get() {
    static Forks& instance = *std::make_unique<Forks>().release();
    return instance;
  }

  static void begin() {
    Forks& forks = get();
    forks.mutex.lock();
    for (State* state : forks.states) {
      state->mutex.lock();
      state->history.hold();
    }
  }
  // In the parent and in the child.
  static void end() {
    Forks& forks = get();
    for (State* state : forks.states) {
      state->history.let_go();
      state->mutex.unlock();
    }
    forks.mutex.unlock();
  }
};

void BlockAllocator::State::hold_at_forks() {
  Forks& forks = Forks::get();
  const std::lock_guard lock(forks.mutex);
  if (forks.states.empty() && pthread_atfork(&Forks::begin, &Forks::end, &Forks::end) != 0) throw std::bad_alloc();
  forks.states.push_back(this);
}

}  // namespace torch_mtia::core
