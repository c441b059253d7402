// Graphs of mtia devices: torch.mtia.MTIAGraph and torch.accelerator.Graph. The counterpart of ATen/cuda/CUDAGraph.h.
//
// Note [Graphs]
// A capture records the work of the current stream, and of streams that join it by events, and runs nothing. A replay
// is one submission to the current stream of the device on which the capture began.
//
// What cannot be captured is refused where it is called, with an exception that names it; nothing of it is recorded,
// the capture goes on, and device, streams and allocator stay as they are. The graph is not replayed then: it lacks
// what was refused. `capture_end` raises none of this again, because upstream's context managers call it while the
// exception is on its way, and lose both the exception and the stream to go back to if it raises.
//
// An exception that ends a capture before its time, by leaving the `with` around it, makes the graph invalid too: see
// `core::hooks.handled_exception`.
//
// Memory that is allocated in a capture comes from a private pool and stays the graph's until it is reset: see Note
// [Private pools] in BlockAllocator.h. Random numbers: see PhiloxSource.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/GraphImplInterface.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../core/Graph.h"
#include "MTIAGenerator.h"
#include "MTIAStream.h"

namespace torch_mtia {

class MTIAGraph final : public at::GraphImplInterface, public core::Graph {
 public:
  explicit MTIAGraph(const at::GraphImplArgs& args = {}) : keep_graph_(args.keep_graph) {}
  ~MTIAGraph() override;

  // Captures the current stream of the current device. The default mode is ThreadLocal, which refuses to wait for the
  // device where the current stream is captured; Global refuses it to all threads, Relaxed to none. Raises RuntimeError
  // if the graph has been captured already, or the stream is being captured.
  void capture_begin(c10::MempoolId_t pool = {0, 0},
                     at::GraphCaptureMode mode = at::GraphCaptureMode::Default) override;
  void capture_end() override;  // raises RuntimeError without a capture_begin before it
  void instantiate() override;
  void replay() override;
  // Waits for replays under way, but in running work: see core::Graph::destroy. Aborts a capture. The memory goes back
  // to the pool, for the other graphs in it.
  void reset() noexcept override;
  c10::MempoolId_t pool() const override;
  void enable_debug_mode() override { keeps_nodes_for_display_ = true; }
  // Writes the nodes as a directed graph in the DOT language of graphviz.
  void debug_dump(const std::string& path) override;

  static c10::MempoolId_t new_pool_handle();

  // Whether there is a graph, captured or being captured, in the process. One load.
  static bool any() { return num_captured.load(std::memory_order_acquire) != 0; }

  // The graph in which the stream is being captured; null: none.
  static MTIAGraph* of(const MTIAStream& stream) { return static_cast<MTIAGraph*>(stream.core().graph()); }

  // Raises RuntimeError if the stream is being captured: `what` cannot be, for this reason, which ends with what to do.
  static void refuse(const MTIAStream& stream, std::string_view what, const char* reason) {
    if (C10_UNLIKELY(stream.core().graph() != nullptr)) refuse_captured(stream, what, reason);
  }
  // The same for what concerns whole devices: for captures whose mode forbids it to this thread.
  static void refuse_on_devices(const char* what);

  // Work that allocates while it runs has been captured: see Note [Memory of running work] in BlockAllocator.h.
  void note_host_function() { has_host_functions_.store(true, std::memory_order_relaxed); }
  // Pinned memory is about to be allocated for the capture.
  void use_host_pool();

  // Reserves random numbers of a generator, which the graph keeps alive, for a draw in the capture.
  PhiloxSource reserve_words(const at::Generator& generator, uint64_t words);

 private:
  struct Draws {
    at::Generator generator;
    uint64_t words;
  };
  // What launches use, and what is let go when all are done.
  struct Memory {
    explicit Memory(c10::MempoolId_t pool) : pool(pool) { ++num_captured; }
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    const c10::MempoolId_t pool;
    std::vector<c10::DeviceIndex> devices;  // whose memory the graph uses
    // Of pinned memory: upstream's allocator takes the id of a pool only once. {0, 0}: the capture allocated none. A
    // pool is large, and each one makes every look for a pinned block longer.
    c10::MempoolId_t host_pool{0, 0};
    std::vector<Draws> draws;
    std::shared_ptr<PhiloxStates> states = std::make_shared<PhiloxStates>();  // of the generators, at the latest replay
  };

  [[noreturn]] static void refuse_captured(const MTIAStream& stream, std::string_view what, const char* reason);
  void stream_joined(core::Stream& stream) override;
  void stream_left(core::Stream& stream) noexcept override;
  void check_captured(const char* function) const;
  void leave_capture_mode();

  const bool keep_graph_;
  bool keeps_nodes_for_display_ = false;
  std::shared_ptr<Memory> memory_;  // null: neither captured nor being captured
  std::atomic<bool> has_host_functions_{false};
  at::GraphCaptureMode mode_ = at::GraphCaptureMode::Default;
  c10::DeviceIndex device_ = 0;

  std::mutex mutex_;  // streams may join on other threads
  std::vector<core::Stream*> launched_in_;
  bool takes_host_pool_ = false;            // it captures, and has none yet
  const void* handled_at_begin_ = nullptr;  // by core::hooks.handled_exception
  static constinit std::atomic<size_t> num_captured;
};

}  // namespace torch_mtia
