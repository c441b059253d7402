// The bytes of memory that nobody has written since it was allocated. No PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "Region.h"

namespace torch_mtia::sanitizer {

class UnwrittenBytes {
 public:
  void add(uint64_t begin, uint64_t end);
  void add(const Region& region);
  void remove(uint64_t begin, uint64_t end);
  void remove(const Region& region);
  void clear() { runs_.clear(); }

  // The first of a region; Region::kNone: all of it is written.
  uint64_t first_of(const Region& region) const;
  bool contains_all(const Region& region) const;
  // Those in between, from low to high addresses, as (begin, end).
  std::vector<std::pair<uint64_t, uint64_t>> between(uint64_t begin, uint64_t end) const;

 private:
  // So many holes at most. Where there would be more, all from the first to the last byte of a region counts as
  // written.
  static constexpr size_t kMaxRuns = 1 << 20;

  using Runs = std::map<uint64_t, uint64_t>;
  // The first run that ends behind the address.
  Runs::const_iterator run_at(uint64_t address) const;

  Runs runs_;  // begin to end; they are apart
};

}  // namespace torch_mtia::sanitizer
