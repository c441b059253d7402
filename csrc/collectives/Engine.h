// What moves the data of a group: eight functions on bytes. Tensors and c10d are above it (csrc/distributed), and who
// the ranks are and how they reach each other is below.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "Reduce.h"

namespace torch_mtia::collectives {

// A peer has died or given up or does not come, or the group was aborted. The group is of no use afterwards.
class GroupError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The ranks have called different collectives, or with different arguments. Raised on all of them. The group remains
// usable.
class MismatchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Timeout = std::chrono::milliseconds;

// The end of a wait. Timeouts that reach beyond the clock's range never expire.
struct Deadline {
  explicit Deadline(Timeout timeout) : timeout(timeout), time(after(timeout)) {}

  bool is_over() const { return std::chrono::steady_clock::now() >= time; }

  Timeout timeout;
  std::chrono::steady_clock::time_point time;

 private:
  static std::chrono::steady_clock::time_point after(Timeout timeout) {
    using Clock = std::chrono::steady_clock;
    const auto now = Clock::now();
    const auto range = std::chrono::floor<Timeout>(Clock::time_point::max() - now);
    return timeout < range ? now + timeout : Clock::time_point::max();
  }
};

struct Input {
  const std::byte* data = nullptr;
  size_t num_bytes = 0;
};

struct Output {
  std::byte* data = nullptr;
  size_t num_bytes = 0;
};

// What all ranks have to agree on. No padding: compared as bytes.
struct Signature {
  char collective[32] = "";
  char dtype[28] = "";  // the caller's name for it
  int32_t root = -1;
  // Counts the caller's calls. A rank that has failed in a call before it came here would otherwise combine its next
  // one with the others' present one.
  uint64_t number = 0;
};

struct Call {
  Signature signature;
  Timeout timeout;
  bool may_differ = false;  // the signatures of the ranks: the caller compares them
};

// What a rank asks for in a reduction.
struct Reduction {
  ElementType type = ElementType::kUInt8;
  Operation operation = Operation::kSum;
  double factor = 1;  // of this rank's elements: see Contribution
};

constexpr int kAnyRank = -1;

// One that is on its way.
class Message {
 public:
  virtual ~Message() = default;
  // Blocks. Returns the rank that has sent it.
  virtual int wait(Timeout timeout) = 0;
};

// Collectives block until this rank's part is done, and all ranks call the same ones in the same order.
class Engine {
 public:
  Engine(int rank, int size) : rank_(rank), size_(size) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // `result` may be the input.
  virtual void all_reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) = 0;
  // `result` is used on the root only.
  virtual void reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) = 0;
  // An input for each rank. `result` may be this rank's.
  virtual void reduce_scatter(const Call& call, const Reduction& reduction, std::span<const Input> inputs,
                              std::byte* result) = 0;
  // The input goes to the ranks that have a size in `to`, which is its size or 0; an output for what each rank gives.
  // This rank's own may be the input.
  virtual void multicast(const Call& call, Input input, std::span<const uint64_t> to,
                         std::span<const Output> outputs) = 0;
  // An input for each rank, an output for what each rank gives.
  virtual void exchange(const Call& call, std::span<const Input> inputs, std::span<const Output> outputs) = 0;
  virtual void barrier(const Call& call) = 0;

  // The memory, and the engine, have to stay until the message's wait() has returned or raised.
  virtual std::shared_ptr<Message> send(Input input, int destination, int64_t tag) = 0;
  virtual std::shared_ptr<Message> receive(Output output, int source, int64_t tag) = 0;

  // The collectives in which other ranks of this machine wait for this one: "; rank 1: all_reduce SUM of Float". Empty
  // if there is none, and while this rank is in one itself.
  virtual std::string awaited() = 0;

  // What waits raises, and so do all later calls, here and on the ranks that wait for this one.
  virtual void abort(const std::string& reason) noexcept = 0;

 private:
  const int rank_;
  const int size_;
};

}  // namespace torch_mtia::collectives
