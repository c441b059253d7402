// What the layers below call in the layers above, the observer of accesses and waits (csrc/sanitizer) among it. No
// PyTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "WorkItem.h"

namespace torch_mtia::core {

class Event;
class Graph;
class Stream;
struct WorkError;

// Watches the launches of a kernel: one, or all those of a graph's node.
class KernelWatcher : public mtia_kernel_watch {
 public:
  virtual ~KernelWatcher() = default;
  // The programs of a launch have run, all on one thread. Called on any thread.
  virtual void finished() noexcept = 0;

 protected:
  explicit KernelWatcher(const mtia_kernel_watch& watch) : mtia_kernel_watch(watch) {}
};

// Runs an item in place of the stream: on the thread that runs it, each time that it runs, until the item dies.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual mtia_status run(const mtia_work& work, OperandList list, const mtia_work_context* context) = 0;
};

// Callbacks run on the acting thread, before the action; for waits, after it. Any number of threads at a time.
class Observer {
 public:
  using List = OperandList;
  // The result runs the work; null: the stream does. Ignored for copies and fills.
  virtual std::shared_ptr<RunObserver> submits(const Stream& stream, const char* name, List list, const void* work) = 0;
  // A kernel. Null: it is not watched.
  virtual std::shared_ptr<KernelWatcher> submits(const Stream& stream, const char* name,
                                                 const mtia_kernel_launch& launch) = 0;
  virtual void records(const Event& event, const Stream& stream) = 0;
  virtual void waits(const Stream& stream, const Event& event) = 0;
  virtual void host_waited(const Stream& stream) = 0;
  virtual void host_waited(const Event& event) = 0;
  virtual void destroys(const Event& event) noexcept = 0;
  // Submissions, records and waits of a stream that is captured become part of the graph.
  virtual void captures(const Graph& graph) = 0;
  virtual void has_captured(const Graph& graph) noexcept = 0;
  virtual void launches(const Graph& graph, const Stream& stream) = 0;
  virtual void destroys(const Graph& graph) noexcept = 0;
  // `is_private`: memory of a graph, which uses it also after the program has freed it.
  virtual void allocated(uint64_t address, uint64_t size, bool is_private) = 0;
  virtual void freed(uint64_t address) noexcept = 0;
  // Memory, of the device or of the host, is reused only after the work that `stream` has now: its allocator waits for
  // an event of its own, or for the stream. May be called with locks of the allocator.
  virtual void reuse_waits_for(const Stream& stream, uint64_t address, uint64_t size) noexcept = 0;
  // The calling thread reads or writes memory of the host.
  virtual void touches(const char* name, List list, const void* work) = 0;
  // A function of the host is about to be submitted. Returns its number, for RunningWork.
  virtual uint64_t submits_host_function(const Stream& stream) = 0;
  virtual void ended_host_function(uint64_t number) noexcept = 0;

 protected:
  ~Observer() = default;
};

// Set by the layers above when they are loaded, or when the device is initialized; the atomics at any time. Null: there
// is nothing to call.
struct Hooks {
  // Releases the interpreter's lock, Python's GIL. Returns what reacquire_interpreter_lock takes; null: the calling
  // thread did not hold the lock.
  void* (*release_interpreter_lock)() = nullptr;
  void (*reacquire_interpreter_lock)(void* state) = nullptr;

  // Ends the thread pool of the calling thread, which starts again when it is needed: see Note [Idle thread pools] in
  // Waits.h.
  void (*release_threads)() = nullptr;

  // Returns cached pinned memory to the host, whose memory that of the device may be. Called without locks of the
  // allocator, on any thread, in running work too; must not wait for streams.
  void (*return_host_cache)() = nullptr;

  // Raises an error of work in the terms of the layer above. Without it, the exception of the work is rethrown, and a
  // failure of the driver is a runtime::DriverError.
  void (*raise_error)(const Stream& stream, const WorkError& error) = nullptr;

  // The exception that the interpreter handles on the calling thread, and its message if `text` is not null. Null:
  // none.
  const void* (*handled_exception)(std::string* text) = nullptr;

  // Called once, when the device is initialized: children that are forked later must know.
  void (*on_first_use)() = nullptr;

  // Throws for work that must not be captured.
  std::atomic<void (*)(const Stream& stream, const char* name, OperandList list, const void* work)> check_capture{};

  // An observer lives as long as the process: a thread may be about to call it when it is replaced.
  std::atomic<Observer*> observer{};
};
extern constinit Hooks hooks;

inline Observer* current_observer() {
  return hooks.observer.load(std::memory_order_acquire);
}

}  // namespace torch_mtia::core
