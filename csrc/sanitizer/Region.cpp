#include "Region.h"

#include <algorithm>
#include <limits>

namespace torch_mtia::sanitizer {

Region::Region(uint64_t address, uint64_t element_size, std::span<const int64_t> sizes,
               std::span<const int64_t> strides, int64_t stride_unit)
    : range_{address, address}, run_(element_size) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto size = static_cast<uint64_t>(sizes[d]);
    const int64_t stride = strides[d] * stride_unit;
    if (size == 0) run_ = 0;
    if (size <= 1 || stride == 0) continue;
    if (stride < 0) range_.begin += (size - 1) * stride;
    grid_.push_back({size, static_cast<uint64_t>(std::abs(stride)), 0});
  }
  std::sort(grid_.begin(), grid_.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  // From the smallest stride on: runs that touch or overlap become one run, dimensions that continue each other one.
  std::vector<Dimension> merged;
  uint64_t reach = run_;
  for (const Dimension& each : grid_) {
    if (merged.empty() && each.stride <= reach) {
      reach = run_ = (each.size - 1) * each.stride + run_;
      continue;
    }
    if (!merged.empty() && merged.back().stride * merged.back().size == each.stride) {
      merged.back().size *= each.size;
    } else {
      merged.push_back({each.size, each.stride, reach});
    }
    reach += (each.size - 1) * each.stride;
  }
  std::reverse(merged.begin(), merged.end());
  grid_ = std::move(merged);
  range_.end = range_.begin + (run_ == 0 ? 0 : reach);
}

Region::Region(Runs runs)
    : range_{runs.front().begin, runs.back().end},
      run_(runs.front().size()),
      scattered_(std::make_shared<const Runs>(std::move(runs))) {}

Region::Runs::const_iterator Region::scattered_after(uint64_t address) const {
  return std::upper_bound(scattered_->begin(), scattered_->end(), address,
                          [](uint64_t at, const auto& each) { return at < each.end; });
}

uint64_t Region::next_scattered(uint64_t address) const {
  const auto run = scattered_after(address);
  return run != scattered_->end() ? std::max(address, run->begin) : kNone;
}

uint64_t Region::next(std::span<const Dimension> grid, uint64_t first, uint64_t last, uint64_t address) {
  if (address >= last || first >= last) return kNone;
  if (grid.empty() || address <= first) return std::max(address, first);
  const auto [size, stride, reach] = grid.front();
  // From the first index that ends after the address on. Where indices overlap, a later one may have the nearest byte.
  uint64_t found = kNone;
  for (uint64_t index = address < first + reach ? 0 : (address - first - reach) / stride + 1; index < size; ++index) {
    const uint64_t at = first + index * stride;
    if (at >= found) break;
    found = std::min(found, next(grid.subspan(1), at, at + reach, address));
  }
  return found;
}

uint64_t Region::run_end(uint64_t address) const {
  return scattered_ == nullptr ? run_end(grid_, begin(), address) : scattered_after(address)->end;
}

uint64_t Region::run_end(std::span<const Dimension> grid, uint64_t first, uint64_t address) const {
  if (grid.empty()) return first + run_;
  const auto [size, stride, reach] = grid.front();
  // Several indices may reach across the address; one holds it.
  uint64_t index = address < first + reach ? 0 : (address - first - reach) / stride + 1;
  while (next(grid.subspan(1), first + index * stride, first + index * stride + reach, address) != address) ++index;
  return run_end(grid.subspan(1), first + index * stride, address);
}

bool Region::contains_all(const Region& other) const {
  if (is_dense()) return contains(other.range_);
  if (scattered_ != nullptr || other.scattered_ != nullptr) return scattered_ == other.scattered_;
  // The same grid, each run inside the run of the same index.
  const auto is_alike = [](const Dimension& a, const Dimension& b) { return a.size == b.size && a.stride == b.stride; };
  return other.begin() + other.run_ <= begin() + run_ &&
         std::equal(grid_.begin(), grid_.end(), other.grid_.begin(), other.grid_.end(), is_alike);
}

uint64_t Region::num_runs() const {
  uint64_t count = 1;
  for (const Dimension& each : grid_) {
    if (__builtin_mul_overflow(count, each.size, &count)) return std::numeric_limits<uint64_t>::max();
  }
  return count;
}

bool Region::overlaps(const Region& other) const {
  if (empty() || other.empty() || !range_.overlaps(other.range_)) return false;
  if (is_dense()) return other.overlaps(begin(), end());
  if (other.is_dense()) return overlaps(other.begin(), other.end());
  if (scattered_ != nullptr || other.scattered_ != nullptr) {
    const Region& one = scattered_ != nullptr ? *this : other;
    const Region& two = scattered_ != nullptr ? other : *this;
    return std::any_of(one.scattered_->begin(), one.scattered_->end(),
                       [&](const auto& run) { return two.overlaps(run.begin, run.end); });
  }
  const bool is_shorter = num_runs() <= other.num_runs();
  const Region& one = is_shorter ? *this : other;
  const Region& two = is_shorter ? other : *this;
  return one.any_row([&two](uint64_t first, uint64_t run, uint64_t count, uint64_t stride) {
    for (; count != 0; --count, first += stride) {
      if (two.overlaps(first, first + run)) return true;
    }
    return false;
  });
}

}  // namespace torch_mtia::sanitizer
