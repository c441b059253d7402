#include "Region.h"

#include <algorithm>
#include <limits>

namespace torch_mtia::sanitizer {

Region::Region(uint64_t address, uint64_t element_size, std::span<const int64_t> sizes,
               std::span<const int64_t> strides)
    : begin_(address), end_(address), run_(element_size) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) run_ = 0;
    if (sizes[d] <= 1 || strides[d] == 0) continue;
    const auto size = static_cast<uint64_t>(sizes[d]);
    const auto stride = static_cast<uint64_t>(std::abs(strides[d]));
    if (strides[d] < 0) begin_ -= (size - 1) * stride;
    grid_.push_back({size, stride, 0});
  }
  std::sort(grid_.begin(), grid_.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  // From the smallest stride on: what is as long as the distance to its neighbour is one run with it.
  std::vector<Dimension> kept;
  uint64_t reach = run_;
  for (const Dimension& each : grid_) {
    if (kept.empty() && each.stride <= reach) {
      reach = run_ = (each.size - 1) * each.stride + run_;
      continue;
    }
    if (!kept.empty() && kept.back().stride * kept.back().size == each.stride) {
      kept.back().size *= each.size;
    } else {
      kept.push_back({each.size, each.stride, reach});
    }
    reach += (each.size - 1) * each.stride;
  }
  std::reverse(kept.begin(), kept.end());
  grid_ = std::move(kept);
  end_ = begin_ + (run_ == 0 ? 0 : reach);
}

Region::Region(Runs runs)
    : begin_(runs.front().first),
      end_(runs.back().second),
      run_(runs.front().second - runs.front().first),
      scattered_(std::make_shared<const Runs>(std::move(runs))) {}

Region::Runs::const_iterator Region::scattered_behind(uint64_t address) const {
  return std::upper_bound(scattered_->begin(), scattered_->end(), address,
                          [](uint64_t at, const auto& each) { return at < each.second; });
}

uint64_t Region::next_scattered(uint64_t address) const {
  const auto run = scattered_behind(address);
  return run != scattered_->end() ? std::max(address, run->first) : kNone;
}

uint64_t Region::next(std::span<const Dimension> grid, uint64_t first, uint64_t last, uint64_t address) {
  if (address >= last || first >= last) return kNone;
  if (grid.empty() || address <= first) return std::max(address, first);
  const auto [size, stride, reach] = grid.front();
  // From the first that ends behind the address on. What lies at the next index may come first, if they overlap.
  uint64_t found = kNone;
  for (uint64_t index = address < first + reach ? 0 : (address - first - reach) / stride + 1; index < size; ++index) {
    const uint64_t at = first + index * stride;
    if (at >= found) break;
    found = std::min(found, next(grid.subspan(1), at, at + reach, address));
  }
  return found;
}

uint64_t Region::run_end(uint64_t address) const {
  return scattered_ == nullptr ? run_end(grid_, begin_, address) : scattered_behind(address)->second;
}

uint64_t Region::run_end(std::span<const Dimension> grid, uint64_t first, uint64_t address) const {
  if (grid.empty()) return first + run_;
  const auto [size, stride, reach] = grid.front();
  // Of several that reach across the address, only one may hold it.
  uint64_t index = address < first + reach ? 0 : (address - first - reach) / stride + 1;
  while (next(grid.subspan(1), first + index * stride, first + index * stride + reach, address) != address) ++index;
  return run_end(grid.subspan(1), first + index * stride, address);
}

bool Region::contains_all(const Region& other) const {
  if (is_dense()) return contains(other.begin_, other.end_);
  if (scattered_ != nullptr || other.scattered_ != nullptr) return scattered_ == other.scattered_;
  // Each run of the other one lies in the run at the same place of the grid.
  const auto is_alike = [](const Dimension& a, const Dimension& b) { return a.size == b.size && a.stride == b.stride; };
  return other.begin_ + other.run_ <= begin_ + run_ &&
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
  if (empty() || other.empty() || begin_ >= other.end_ || other.begin_ >= end_) return false;
  if (is_dense()) return other.overlaps(begin_, end_);
  if (other.is_dense()) return overlaps(other.begin_, other.end_);
  if (scattered_ != nullptr || other.scattered_ != nullptr) {
    const Region& one = scattered_ != nullptr ? *this : other;
    const Region& two = scattered_ != nullptr ? other : *this;
    return std::any_of(one.scattered_->begin(), one.scattered_->end(),
                       [&](const auto& run) { return two.overlaps(run.first, run.second); });
  }
  return num_runs() <= other.num_runs() ? other.meets_runs_of(*this) : meets_runs_of(other);
}

bool Region::meets_runs_of(const Region& other) const {
  std::vector<uint64_t> index(other.grid_.size(), 0);
  for (;;) {
    uint64_t at = other.begin_;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * other.grid_[d].stride;
    if (overlaps(at, at + other.run_)) return true;
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == other.grid_[d - 1].size) index[--d] = 0;
    if (d == 0) return false;
  }
}

}  // namespace torch_mtia::sanitizer
