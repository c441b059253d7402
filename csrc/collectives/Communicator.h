// The engine of processes that share memory.
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
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "Engine.h"
#include "Messages.h"
#include "Team.h"

namespace torch_mtia::collectives {

// What each rank says of its call before data move. All ranks compare the same announcements, so all of them raise if
// the calls do not fit, and no result is written.
struct Announcement {
  Signature signature;
  bool is_reduction;
  Reduction reduction;
  uint64_t bytes[];  // that the rank gives to each rank, then those that it expects of each

  // With what it has for each rank of a group of this size.
  static constexpr size_t num_bytes(int size) { return sizeof(Announcement) + 2 * size * sizeof(uint64_t); }
  void set(const Call& call, const std::optional<Reduction>& reduction, std::span<const uint64_t> to,
           std::span<const uint64_t> from);
};

// "; rank 1: all_reduce SUM of Float (call 3)".
std::string call_of(const Announcement& announcement, int rank);

// Both raise MismatchError. `names` are the ranks of the announcements, in messages.
void check_same_calls(std::span<const Announcement* const> announcements, std::span<const int> names);
// Returns the most that a rank gives to another one, in bytes.
uint64_t agree_on_sizes(std::span<const Announcement* const> announcements, std::span<const int> names);

class Communicator final : public Engine {
 public:
  // Bytes of Team::memory().
  static size_t memory_size(int size);

  // Has the team's rooms.
  explicit Communicator(std::shared_ptr<const Team> team);

  void all_reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) override;
  void reduce(const Call& call, const Reduction& reduction, Input input, std::byte* result) override;
  void reduce_scatter(const Call& call, const Reduction& reduction, std::span<const Input> inputs,
                      std::byte* result) override;
  void multicast(const Call& call, Input input, std::span<const uint64_t> to, std::span<const Output> outputs) override;
  void exchange(const Call& call, std::span<const Input> inputs, std::span<const Output> outputs) override;
  void barrier(const Call& call) override;
  std::shared_ptr<Message> send(Input input, int destination, int64_t tag) override {
    return messages_.send(input, destination, tag);
  }
  std::shared_ptr<Message> receive(Output output, int source, int64_t tag) override {
    return messages_.receive(output, source, tag);
  }
  std::string awaited() override;
  void abort(const std::string& reason) noexcept override { team_->give_up(reason); }

 private:
  struct Control {
    alignas(64) std::atomic<uint64_t> posted;  // rounds
  };
  struct Plan {
    const Call& call;
    std::optional<Reduction> reduction;
    std::span<const uint64_t> to;
    std::span<const uint64_t> from;
    size_t area;  // bytes that a rank gives to another in a round
    uint64_t num_further_rounds = 0;
  };
  enum class Half { kIn, kOut };

  static size_t announcement_bytes(int size);
  static size_t rounds_bytes(int size);  // before the messages' rings
  Control& control(int rank) const;
  // Of a round of the group.
  Announcement& announced(int rank, uint64_t round) const;
  std::byte* buffer(int rank, uint64_t round, Half half = Half::kIn) const;

  // fill(i) and read(i) do this rank's part of the call's round i, which is round_ of the group.
  template <typename Fill, typename Read>
  void run(const Plan& plan, const Fill& fill, const Read& read);
  // At the end of a call, with the mutex: each rank has posted this round, and none is further than the next one.
  bool is_valid() const;
  void post_and_wait(const Deadline& deadline);
  // The rounds that all need. Raises MismatchError.
  uint64_t agree(const Plan& plan) const;
  // An area of this rank's buffer for each of the others.
  void fill_areas(std::span<const Input> inputs, size_t area, uint64_t round);

  // What the ranks give to a reduction: this rank `own`, the others what starts at `offset` of their buffers.
  std::vector<Contribution> contributions(const std::byte* own, uint64_t round, size_t offset) const;
  // All that is reduced passes through the buffers whole: where one rank wants it, or where it is small.
  void reduce_whole(const Call& call, const Reduction& reduction, Input input, std::byte* result,
                    std::span<const uint64_t> to, std::span<const uint64_t> from);
  void reduce_by_parts(const Call& call, const Reduction& reduction, Input input, std::byte* result,
                       std::span<const uint64_t> sizes);

  const std::shared_ptr<const Team> team_;
  Messages messages_;
  std::mutex mutex_;  // one collective at a time; guards:
  uint64_t round_ = 0;
  std::vector<double> factors_;  // of the ranks, in the reduction that is under way
};

}  // namespace torch_mtia::collectives
