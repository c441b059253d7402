// Watches the process's devices, and keeps what it finds until somebody asks. No PyTorch.
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
#include "../core/Observer.h"
#include "Capture.h"
#include "Detector.h"
#include "KernelItem.h"
#include "Log.h"

namespace torch_mtia::sanitizer {

// Leaked: any thread may be about to call it.
class Sanitizer final : public core::Observer, public core::AllocatorObserver {
 public:
  // What is to be asked of the program, on the thread that does something.
  struct Program {
    Context (*context)();  // where it is
    uint64_t (*site)();    // see Detector::allocate
    // Findings that nobody can tell from each other become one, with their count.
    std::vector<Finding> (*merge)(std::vector<Finding> findings);
  };

  // Watches from now on, with nothing known of what was before.
  static void start(Checks checks, bool numbers, const Program& program);  // which is kept
  static void stop();
  // BLOCKS until all kernels have run that were launched so far: what they touch is not known before.
  static void wait();
  static bool is_running() { return core::current_observer() != nullptr; }
  static bool watches_numbers() { return get().watches_numbers_; }
  // What was found since the last call.
  static std::vector<Finding> take();
  static std::vector<LiveSite> live_blocks();
  // Work of which nobody knows what it touches: how much there was of each name.
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
  // What the calling thread submits to a stream, or does itself (null). Null: running work does, which lists what it
  // touches as a whole.
  std::optional<Item> begin_item(const char* name, const core::Stream* stream);
  void add(Item item);
  // Reserves a place in the log; `complete` gives what is applied there, when all kernels of the nodes have run.
  using Complete = std::function<std::function<void()>(std::vector<Node> nodes)>;
  void submit(std::vector<Node> nodes, Complete complete);

  // Null: nobody watched when it was captured.
  std::shared_ptr<Capture> captured(const core::Graph* graph);
  std::vector<std::shared_ptr<Capture>> capturing();
  void add(const core::Graph* graph, Node node);
  // What is wrong among the nodes of a graph.
  std::vector<Finding> check(Capture& capture, std::vector<Node>& nodes);
  void count_unlisted(const std::string& name);

  Log log_;
  Detector detector_;
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
