// Replays that need several threads.
//
// Note [Threads of a replay]
// The thread that runs the launch and helpers of the graph's own take ordinary chains as they become ready. Chains of
// work that blocks run on threads of their own, one for each captured stream that has such work: the nodes of a stream
// are in order, so no more of these chains are ready at a time. So a blocked chain holds back only what depends on it.
// All threads start before the first launch and sleep between launches: a replay that has begun needs nothing that
// could be refused.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "graph.h"

namespace torch_mtia::runtime::host {

// A run of nodes in which each depends on just the one before it. Either all of them may block or none.
struct Chain {
  std::vector<uint32_t> nodes;
  std::vector<uint32_t> successors;  // chains
  uint32_t num_predecessors = 0;     // chains
  uint64_t cost = 0;
  bool blocks = false;
};

// Shared by the executable graph and its threads. The graph outlives the last run.
class ParallelReplay : public std::enable_shared_from_this<ParallelReplay> {
 public:
  // Null: nothing is gained, or the graph is too small.
  static std::shared_ptr<ParallelReplay> create(const Graph& graph);

  // Throws std::system_error without the threads that work which blocks needs. To be called before each run.
  void start_threads();
  void stop_threads() noexcept;

  // All nodes. One run at a time.
  void run(Stream& stream, int32_t num_threads, std::span<const uint64_t> trace_ids) noexcept;

 private:
  enum Kind : size_t { kOrdinary, kBlocking, kNumKinds };
  static Kind kind_of(const Chain& chain) { return chain.blocks ? kBlocking : kOrdinary; }

  ParallelReplay(const Graph& graph, std::vector<Chain> chains, std::array<size_t, kNumKinds> num_threads);
  void help(Kind kind) noexcept;
  void run_next(Kind kind, int32_t num_threads, std::unique_lock<std::mutex>& lock) noexcept;
  void make_ready(uint32_t index, Kind by) noexcept;

  const Graph& graph_;
  const std::vector<Chain> chains_;
  const std::array<size_t, kNumKinds> num_threads_;  // beside the one that runs the launch

  std::mutex mutex_;
  std::array<std::condition_variable, kNumKinds> changed_;
  std::array<size_t, kNumKinds> num_started_{};
  bool is_over_ = false;
  // Of the run under way.
  Stream* stream_ = nullptr;
  std::span<const uint64_t> trace_ids_;
  std::vector<uint32_t> missing_;                       // predecessors of each chain that are not done
  std::array<std::vector<uint32_t>, kNumKinds> ready_;  // have room for all
  size_t unfinished_ = 0;
};

}  // namespace torch_mtia::runtime::host
