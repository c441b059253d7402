#include "range_allocator.h"

#include <iterator>

namespace torch_mtia::runtime::host {

RangeAllocator::RangeAllocator(uint64_t capacity) : capacity_(capacity) {
  if (capacity != 0) free_.emplace(0, capacity);
}

std::optional<uint64_t> RangeAllocator::allocate(uint64_t size) {
  if (size > capacity_) return std::nullopt;
  const uint64_t page = size >= kHugePage ? kHugePage : kSmallPage;
  size = round_to_pages(size);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const uint64_t begin = range->first;
    const uint64_t end = begin + range->second;
    const uint64_t offset = round_up(begin, page);
    if (offset + size > end) continue;
    allocated_.emplace(offset, size);
    if (offset + size < end) free_.emplace(offset + size, end - offset - size);
    if (begin < offset) {
      range->second = offset - begin;
    } else {
      free_.erase(range);
    }
    return offset;
  }
  return std::nullopt;
}

uint64_t RangeAllocator::size_of(uint64_t offset) const {
  const auto allocation = allocated_.find(offset);
  return allocation == allocated_.end() ? 0 : allocation->second;
}

uint64_t RangeAllocator::release(uint64_t offset) {
  const uint64_t size = size_of(offset);
  allocated_.erase(offset);
  return size;
}

void RangeAllocator::recycle(uint64_t offset, uint64_t size) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  free_.emplace_hint(after, offset, size);
}

bool RangeAllocator::contains(uint64_t offset, uint64_t size) const {
  const auto behind = allocated_.upper_bound(offset);
  if (behind == allocated_.begin()) return false;
  const auto& [begin, length] = *std::prev(behind);
  return offset - begin < length && size <= length - (offset - begin);
}

}  // namespace torch_mtia::runtime::host
