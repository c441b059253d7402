// Observers of memory accesses and of waits: the sanitizer (csrc/sanitizer). No PyTorch.
#pragma once

#include <cstdint>
#include <memory>

#include "Hooks.h"
#include "Operands.h"

namespace torch_mtia::core {

class Event;
class Graph;
class Stream;

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

}  // namespace torch_mtia::core
