// What the device's own steps take, in nanoseconds on one thread. The costs of work are the caller's estimates; what is
// decided by them is decided against these. Measured on servers with two to eight cores.
#pragma once

#include <cstdint>
#include <limits>

namespace torch_mtia::runtime::host {

// Waking a sleeping thread and waiting for it: work for less is not worth one.
inline constexpr uint64_t kThreadCostNs = 10000;

// The one measure of small and large. Work that is not worth a second thread may run on the one that launches it, if
// its stream is idle, and a chain of a graph's nodes stays on the thread that replays it. Where other programs compete
// for the cores, a parallel loop takes milliseconds, however short: the threads of its team wait for each other.
inline constexpr uint64_t kInlineCostNs = 2 * kThreadCostNs;

// What is beyond the greatest number is that.
constexpr uint64_t add_costs(uint64_t a, uint64_t b) noexcept {
  constexpr uint64_t kGreatest = std::numeric_limits<uint64_t>::max();
  return a > kGreatest - b ? kGreatest : a + b;
}

// What running a node of a graph takes beside its work.
inline constexpr uint64_t kNodeCostNs = 200;

// Of a program of a kernel whose image does not say, until it has run.
inline constexpr uint64_t kUnknownProgramCostNs = 1000;

// A thread takes the programs of a kernel in pieces, which are long against taking one.
inline constexpr uint64_t kPieceCostNs = 4000;

// Bytes that a copy moves within the second-level cache. Larger ones are slower, and large at any rate.
inline constexpr uint64_t kBytesPerNs = 40;

}  // namespace torch_mtia::runtime::host
