// Whether a kernel's access stays inside a live range of its launch: for the driver's check, and the sanitizer's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "mtia_runtime.h"

namespace torch_mtia::runtime {

// All bytes of the access. The kernel computes `address`: its end may exceed 64 bits.
inline bool contains(const mtia_span& range, uint64_t address, uint64_t size) {
  const uint64_t offset = address - range.address;
  return address >= range.address && size <= range.size && offset <= range.size - size;
}

// The range that the address is in, of disjoint and ascending ones; null: none.
inline const mtia_span* range_at(std::span<const mtia_span> ranges, uint64_t address) {
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), address,
                                     [](uint64_t at, const mtia_span& range) { return at < range.address; });
  if (next == ranges.begin() || !contains(*std::prev(next), address, 1)) return nullptr;
  return &*std::prev(next);
}

}  // namespace torch_mtia::runtime
