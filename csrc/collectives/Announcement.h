// What each rank says of its call before data move. All ranks compare the same announcements, so all of them raise if
// the calls do not fit, and no result is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "Engine.h"

namespace torch_mtia::collectives {

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

}  // namespace torch_mtia::collectives
