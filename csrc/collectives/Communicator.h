// Collectives of processes that share memory. Each call blocks until this rank's part is done.
//
// Note [Rounds]
// What a rank gives passes through two buffers in its memory, by turns. In a round each rank fills its buffer of that
// round, posts the round's number, and waits until all have posted it; then it reads what the others have filled. Who
// posts a round has read what it wants of the one before: so when a round is complete, the buffers of the round before
// it may be filled anew, and nobody has to say that it is done with one.
//
// In the first round of a call each rank also says what it has called. All see the same and raise the same if it does
// not fit, before a result is written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "Reduce.h"
#include "Team.h"

namespace torch_mtia::collectives {

// The ranks have called different collectives, or with different arguments. Raised on all of them. The group remains
// usable.
class MismatchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

// What a rank asks for in a reduction.
struct Reduction {
  ElementType type = ElementType::kUInt8;
  Operation operation = Operation::kSum;
  double factor = 1;  // of this rank's elements: see Contribution
};

class Communicator {
 public:
  using Timeout = std::chrono::milliseconds;

  // Bytes of Team::room().
  static size_t room(int size);

  // Has the start of the team's rooms.
  explicit Communicator(std::shared_ptr<const Team> team);

  int rank() const { return team_->index(); }
  int size() const { return team_->size(); }

  // `result` may be the input.
  void all_reduce(const Signature& signature, const Reduction& reduction, Input input, std::byte* result,
                  Timeout timeout);
  // `result` is used on the root only.
  void reduce(const Signature& signature, const Reduction& reduction, Input input, std::byte* result, Timeout timeout);
  // An input for each rank. `result` may be this rank's.
  void reduce_scatter(const Signature& signature, const Reduction& reduction, std::span<const Input> inputs,
                      std::byte* result, Timeout timeout);
  // The input goes to the ranks that have a size in `to`, which is its size or 0; an output for what each rank gives.
  // This rank's own may be the input.
  void multicast(const Signature& signature, Input input, std::span<const uint64_t> to, std::span<const Output> outputs,
                 Timeout timeout);
  // An input for each rank, an output for what each rank gives.
  void exchange(const Signature& signature, std::span<const Input> inputs, std::span<const Output> outputs,
                Timeout timeout);
  void barrier(Timeout timeout, uint64_t number = 0);

 private:
  // What a rank says in its first round.
  struct Call {
    Signature signature;
    bool is_reduction;
    Reduction reduction;
    uint64_t bytes[];  // that it gives to each rank, then those that it expects of each
  };
  struct Control {
    alignas(64) std::atomic<uint64_t> posted;  // rounds
  };
  struct Plan {
    Signature signature;
    std::optional<Reduction> reduction;
    std::span<const uint64_t> to;
    std::span<const uint64_t> from;
    size_t area;  // bytes that a rank gives to another in a round
    Timeout timeout;
    uint64_t num_further_rounds = 0;
  };
  enum class Half { kIn, kOut };

  static size_t call_bytes(int size);
  Control& control(int rank) const;
  // Of a round of the group.
  Call& call(int rank, uint64_t round) const;
  std::byte* buffer(int rank, uint64_t round, Half half = Half::kIn) const;

  // fill(i) and read(i) do this rank's part of the call's round i, which is round_ of the group.
  template <typename Fill, typename Read>
  void run(const Plan& plan, const Fill& fill, const Read& read);
  void announce(const Plan& plan);
  void post_and_wait(const Deadline& deadline);
  // The rounds that all need. Raises MismatchError.
  uint64_t agree(size_t area) const;

  // All that is reduced passes through the buffers whole: where one rank wants it, or where it is small.
  void reduce_whole(const Signature& signature, const Reduction& reduction, Input input, std::byte* result,
                    std::span<const uint64_t> to, std::span<const uint64_t> from, Timeout timeout);
  void reduce_by_parts(const Signature& signature, const Reduction& reduction, Input input, std::byte* result,
                       std::span<const uint64_t> sizes, Timeout timeout);

  const std::shared_ptr<const Team> team_;
  std::mutex mutex_;  // one call at a time
  uint64_t round_ = 0;
};

}  // namespace torch_mtia::collectives
