// Observes the devices of the process, and keeps findings until they are taken. No PyTorch.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/Graph.h"
#include "../core/Hooks.h"
#include "Detector.h"
#include "Log.h"

namespace torch_mtia::sanitizer {

// Never destroyed: any thread may be about to call it.
class Sanitizer final : public core::Observer {
 public:
  // Called on the thread that does what is observed.
  struct Program {
    Context (*context)();  // where the program is
    uint64_t (*site)();    // see Detector::allocate
    // Merges findings that a report does not distinguish, and counts them.
    std::vector<Finding> (*merge)(std::vector<Finding> findings);
  };

  // Observes from now on, and knows nothing of what was before. `program` must stay valid.
  static void start(Checks checks, bool numbers, const Program& program);
  static void stop();
  // BLOCKS until all kernels have run that were launched so far: their operands are not known before.
  static void wait();
  static bool is_running() { return core::current_observer() != nullptr; }
  static bool watches_numbers() { return get().watches_numbers_; }
  // The findings since the last call.
  static std::vector<Finding> take();
  static std::vector<LiveSite> live_blocks();
  // How many items of each name did not list their operands.
  static std::map<std::string, uint64_t> unlisted();
  // See Detector.
  static uint64_t num_forgotten();

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
  void reuse_waits_for(const core::Stream& stream, uint64_t address, uint64_t size) noexcept override;
  void touches(const char* name, List list, const void* work) override;
  uint64_t submits_host_function(const core::Stream& stream) override;
  void ended_host_function(uint64_t number) noexcept override;

 private:
  static Sanitizer& get();
  Sanitizer();
  void leave_forked_child() noexcept;
  void keep(std::vector<Finding> findings);
  void merge_findings();
  Context context() const { return program_.load(std::memory_order_relaxed)->context(); }
  // An item that the calling thread submits to a stream, or does itself (null). Nullopt: it is part of running work,
  // which lists its operands as a whole.
  std::optional<Item> begin_item(const char* name, const core::Stream* stream);
  void add(Item item);
  void submit(const core::Stream& stream, Node node);
  void submit(std::vector<Node> nodes, Log::Apply apply);
  // Calls step(detector) in program order; with a stream that is captured, the detector of the graph's order.
  template <typename Step>
  void apply(Step step);
  template <typename Step>
  void apply(const core::Stream& stream, Step step);

  // Null: it was captured before the start.
  std::shared_ptr<Capture> captured(const core::Graph* graph);
  std::vector<std::shared_ptr<Capture>> capturing();
  // What is wrong among the nodes of a graph.
  std::vector<Finding> check(Capture& capture, std::vector<Node>& nodes);
  void count_unlisted(const std::string& name);

  Log log_;
  Detector detector_;  // used by entries of the log, or while it is locked
  std::atomic<const Program*> program_{nullptr};
  std::atomic<bool> finds_leaks_{false};
  std::atomic<uint64_t> num_host_functions_{0};
  std::atomic<bool> watches_numbers_{false};
  std::atomic<bool> checks_bounds_{false};
  std::atomic<uint64_t> num_forgotten_{0};
  std::mutex mutex_;
  Checks checks_;
  std::vector<Finding> findings_;
  std::atomic<size_t> num_findings_{0};
  std::atomic<size_t> merge_at_{0};
  std::map<std::string, uint64_t> unlisted_;
  std::unordered_map<const core::Graph*, std::shared_ptr<Capture>> graphs_;
};

}  // namespace torch_mtia::sanitizer
