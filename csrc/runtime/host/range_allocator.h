// First-fit allocation of ranges of [0, capacity). Knows nothing of memory: offsets only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace torch_mtia::runtime::host {

// A range of 2 MiB or more is cut and aligned in huge pages, a smaller one in small pages.
inline constexpr uint64_t kSmallPage = uint64_t{4} << 10;
inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr uint64_t round_to_pages(uint64_t size) {
  return round_up(size, size >= kHugePage ? kHugePage : kSmallPage);
}

// Not thread safe.
class RangeAllocator {
 public:
  explicit RangeAllocator(uint64_t capacity);

  // The offset of a new range of at least `size` bytes; nothing when no free range is large enough.
  std::optional<uint64_t> allocate(uint64_t size);

  // The size of the range at `offset`; 0: there is none.
  uint64_t size_of(uint64_t offset) const;

  // Whether one allocated range contains all of this one.
  bool contains(uint64_t offset, uint64_t size) const;

  // Giving back takes two steps, so that the caller can drop the pages between them: `release` forgets the allocation
  // and returns its size (0: there is none at `offset`), `recycle` makes the range available, merged with its
  // neighbours.
  uint64_t release(uint64_t offset);
  void recycle(uint64_t offset, uint64_t size);

  const std::map<uint64_t, uint64_t>& allocated() const { return allocated_; }  // offset -> size

 private:
  const uint64_t capacity_;
  std::map<uint64_t, uint64_t> free_;       // offset -> size, no two adjacent
  std::map<uint64_t, uint64_t> allocated_;  // likewise
};

}  // namespace torch_mtia::runtime::host
