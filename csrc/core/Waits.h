// Waiting for the device, and the threads that must not. No PyTorch.
#pragma once

#include <cstdint>
#include <exception>

#include "../processor/attributes.h"
#include "Hooks.h"

namespace torch_mtia::core {

class Event;
class Stream;

// Every function of this layer that waits releases the interpreter's lock, Python's GIL: many of PyTorch's hooks are
// entered with it (torch.mtia.synchronize), and the work that is waited for may need it.
//
// Note [Idle thread pools]
// libgomp keeps a pool of threads for every thread that opens parallel regions. As soon as all pools together have more
// threads than the machine has cores, no thread spins between two regions any more: each region then wakes sleeping
// threads, and one of 20 us takes 100. So a thread that waits for the device releases its pool, and so does an idle
// executor (mtia_init_params.release_threads): only threads that compute have pools then.

// Releases the GIL for the duration of a scope. No other lock may be held at its end.
class WithoutGil {
 public:
  WithoutGil() : state_(hooks.release_interpreter_lock == nullptr ? nullptr : hooks.release_interpreter_lock()) {}
  ~WithoutGil() {
    if (state_ != nullptr) hooks.reacquire_interpreter_lock(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

// Releases the GIL and, if the wait will take time, the calling thread's pool: an idle stream is waited for often.
class BlockingWait {
 public:
  explicit BlockingWait(bool takes_time) {
    if (takes_time && hooks.release_threads != nullptr) hooks.release_threads();
  }

 private:
  const WithoutGil without_gil_;
};

// A scope in which the calling thread runs an item of `stream` that calls PyTorch: the CPU fallback, a host function or
// a collective. Such work never waits for streams: its own would never be idle, and others may wait for this one. An
// item that may allocate device memory has an open window, see Note [Memory of running work] in BlockAllocator.h;
// collectives allocate none.
class RunningWork {
 public:
  // `host_function`: its number, of the observer (Hooks.h). 0: it has none.
  explicit RunningWork(const Stream& stream, uint64_t host_function = 0) noexcept
      : stream_(&stream), host_function_(host_function), outer_(innermost) {
    innermost = this;
  }
  ~RunningWork() { innermost = outer_; }
  RunningWork(const RunningWork&) = delete;
  RunningWork& operator=(const RunningWork&) = delete;

  static bool on_this_thread() noexcept { return innermost != nullptr; }
  // The innermost scope of the calling thread; null: there is none.
  static const RunningWork* current() noexcept { return innermost; }
  const Stream& stream() const { return *stream_; }
  uint64_t host_function() const { return host_function_; }
  // In any scope of the calling thread.
  static bool on_this_thread(const Stream* stream) noexcept {
    const RunningWork* work = innermost;
    while (work != nullptr && work->stream_ != stream) work = work->outer_;
    return work != nullptr;
  }

 private:
  INITIAL_EXEC static constinit thread_local const RunningWork* innermost;

  const Stream* const stream_;
  const uint64_t host_function_;
  const RunningWork* const outer_;
};

// An item that its launching thread waits for, on the stack of that thread.
//
// Note [Items that are waited for]
// Such an item may refer to the stack of the waiting thread, and hands its error to that thread. But the wait can end
// before the item does: the driver refuses to wait, because another thread has begun to capture the stream or the
// device is lost, or the item became a node of a graph that is launched much later. So the item holds a ticket instead
// of a pointer. When it runs, it checks with the ticket whether the thread still waits. A thread that leaves
// invalidates the ticket, after waiting for an item that is running.
class Awaited {
 public:
  Awaited();
  // Blocks while the item is running. An item that starts later finds no waiting thread.
  ~Awaited();
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  // What the item holds; never 0.
  uint64_t ticket() const noexcept { return ticket_; }

  // Blocks until the item, which calls Run::finish and cannot be captured, is done, and raises what it threw. Throws
  // runtime::DriverError when the driver cannot wait: if the item has not run by then, it never will.
  void wait(Stream& stream);
  // Raises what the item has thrown so far.
  void raise_error();

  // For an item that does no more than to give an error: false if the thread has left.
  static bool give(uint64_t ticket, const std::exception_ptr& error) noexcept;

  // For the item: while one of these is not empty, the waiting thread stays.
  class Run {
   public:
    explicit Run(uint64_t ticket) noexcept;
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    explicit operator bool() const noexcept { return awaited_ != nullptr; }  // false: the thread has left
    void fail(std::exception_ptr error) noexcept;
    void finish() noexcept;

   private:
    Awaited* const awaited_;
  };

 private:
  bool is_done();
  bool leave();

  uint64_t ticket_ = 0;
  int users_ = 0;  // of class Run
  bool is_done_ = false;
  std::exception_ptr error_;
  Awaited* previous_ = nullptr;  // in the list of all
  Awaited* next_ = nullptr;
};

// Note [Waits of the program]
// Streams and events of this layer report no wait to an observer (Hooks.h). Most waits are the runtime's own
// (allocators, destructors, deleters, measurements): they depend on timing and on caches, and no program may rely on
// them. The program's own ways to wait (synchronize(), a query() that is true, copies to the host, ...) use these.
// Where the runtime's waits order accesses to memory that is used again, it says so by AllocatorObserver.
void program_has_waited(const Stream& stream);
void program_has_waited(const Event& event);
bool program_queries(const Stream& stream);
bool program_queries(const Event& event);
void program_waits_for(Stream& stream);
void program_waits_for(const Event& event);

}  // namespace torch_mtia::core
