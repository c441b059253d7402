// Watches the process's devices, and keeps what it finds until somebody asks. No PyTorch.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/Graph.h"
#include "../core/Observer.h"
#include "Detector.h"
#include "KernelItem.h"
#include "Log.h"

namespace torch_mtia::sanitizer {

// Leaked: any thread may be about to call it.
class Sanitizer final : public core::Observer {
 public:
  using ContextOf = Context (*)();  // where in the program the calling thread is
  using SiteOf = uint64_t (*)();    // see Detector::allocate

  // Watches from now on, with nothing known of what was before.
  static void start(Checks checks, bool numbers, ContextOf context, SiteOf site);
  static void stop();
  // BLOCKS until all kernels have run that were launched so far: what they touch is not known before.
  static void wait();
  static bool is_running() { return core::current_observer() != nullptr; }
  static bool watches_numbers() { return get().watches_numbers_; }
  // While it lives, what this thread waits for orders nothing: the program would not have waited.
  class OwnWait {
   public:
    OwnWait() { ++count; }
    ~OwnWait() { --count; }
    OwnWait(const OwnWait&) = delete;
    OwnWait& operator=(const OwnWait&) = delete;
    static bool is_under_way() { return count != 0; }

   private:
    static thread_local int count;
  };
  // What was found since the last call.
  static std::vector<Finding> take();
  static std::vector<LiveSite> live_blocks();
  // Work of which nobody knows what it touches: how much there was of each name.
  static std::map<std::string, uint64_t> unlisted();

  std::shared_ptr<core::RunObserver> submits(const core::Stream& stream, const char* name, List list,
                                             const void* work) override;
  std::shared_ptr<core::KernelWatcher> submits(const core::Stream& stream, const char* name,
                                               const mtia_kernel_launch& launch) override;
  void records(const core::Event& event, const core::Stream& stream) override;
  void waits(const core::Stream& stream, const core::Event& event) override;
  void host_waited(const core::Stream& stream) override;
  void host_waited(const core::Event& event) override;
  void destroys(const core::Event& event) noexcept override;
  void captures(const core::Graph& graph) override;
  void has_captured(const core::Graph& graph) noexcept override;
  void launches(const core::Graph& graph, const core::Stream& stream) override;
  void destroys(const core::Graph& graph) noexcept override;
  void allocated(uint64_t address, uint64_t size, bool is_private) override;
  void freed(uint64_t address) noexcept override;
  void touches(const char* name, List list, const void* work) override;
  uint64_t submits_host_function(const core::Stream& stream) override;
  void ended_host_function(uint64_t number) noexcept override;

 private:
  static Sanitizer& get();
  Sanitizer() = default;
  void keep(std::vector<Finding> findings);
  // An item of these nodes, in its place in the log.
  void submit(Item item, std::span<const Node> nodes);
  Context context() const { return context_of_.load(std::memory_order_relaxed)(); }

  // Of a graph that was captured while this watched.
  struct Captured {
    Detector order;  // of its nodes
    bool is_capturing = true;
    std::vector<Node> nodes;
  };
  std::shared_ptr<Captured> captured(const core::Graph* graph);
  std::vector<std::shared_ptr<Captured>> capturing();
  // A node of a graph.
  void add(const core::Graph* graph, Item item, Node node);
  void count_unlisted(const std::string& name);

  Log log_;
  Detector detector_;
  std::atomic<ContextOf> context_of_{nullptr};
  std::atomic<SiteOf> site_of_{nullptr};  // null: nobody looks for leaks
  std::atomic<uint64_t> num_host_functions_{0};
  std::atomic<bool> watches_numbers_{false};
  std::atomic<bool> checks_bounds_{false};
  std::mutex mutex_;
  Checks checks_;
  std::vector<Finding> findings_;
  std::map<std::string, uint64_t> unlisted_;
  std::unordered_map<const core::Graph*, std::shared_ptr<Captured>> graphs_;
};

}  // namespace torch_mtia::sanitizer
