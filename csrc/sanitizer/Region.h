// The bytes of a strided tensor, and whether two tensors share some. No PyTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "../core/WorkItem.h"

namespace torch_mtia::sanitizer {

// Addresses from `begin` to before `end`.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};

// Runs of contiguous bytes, all of one length: at begin() + the sum of index * stride, for each index below a
// dimension's size. Adjacent runs are merged, so a dense tensor is one run. Or scattered: a list of any runs.
class Region {
 public:
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  using Runs = std::vector<ByteRange>;

  Region() = default;  // no bytes
  // Strides, of either sign, are in units of `stride_unit` bytes.
  Region(uint64_t address, uint64_t element_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
         int64_t stride_unit = 1);
  explicit Region(const core::Operand& of)
      : Region(of.address, of.element_size, of.sizes, of.strides, of.stride_unit) {}
  // Scattered: disjoint runs in ascending order, at least one.
  explicit Region(Runs runs);
  static Region dense(uint64_t address, uint64_t size) { return Region(address, size, {}, {}); }

  bool empty() const { return run_ == 0; }
  const ByteRange& range() const { return range_; }  // from the first to the last byte
  uint64_t begin() const { return range_.begin; }
  uint64_t end() const { return range_.end; }
  bool is_dense() const { return grid_.empty() && scattered_ == nullptr; }

  // The first byte at or after `address`; kNone: there is none.
  uint64_t next(uint64_t address) const {
    return scattered_ == nullptr ? next(grid_, begin(), end(), address) : next_scattered(address);
  }
  // The end of a run that holds `address`, which belongs to the region.
  uint64_t run_end(uint64_t address) const;
  bool overlaps(const Region& other) const;
  bool overlaps(uint64_t begin, uint64_t end) const { return begin < end && next(begin) < end; }
  // Whether all bytes belong to this region. Conservative: false where only several runs together hold them, ...
  bool contains(const ByteRange& bytes) const { return is_dense() && range_.contains(bytes); }
  // ... or where the other region has another grid.
  bool contains(const Region& other) const { return may_contain(other.begin()) && contains_all(other); }
  // A cheap test before contains(): of the other region's begin().
  bool may_contain(uint64_t address) const {
    return begin() <= address && address < (is_dense() ? end() : begin() + run_);
  }

  // Calls body(first, run, count, stride) for `count` runs of `run` bytes, `stride` apart, until a call returns true;
  // returns whether one did. Not of a scattered region.
  template <typename Body>
  bool any_row(Body body) const {
    if (empty()) return false;
    const Dimension inner = grid_.empty() ? Dimension{1, 0, 0} : grid_.back();
    std::vector<uint64_t> index(grid_.empty() ? 0 : grid_.size() - 1);
    for (;;) {
      uint64_t first = begin();
      for (size_t d = 0; d < index.size(); ++d) first += index[d] * grid_[d].stride;
      if (body(first, run_, inner.size, inner.stride)) return true;
      size_t d = index.size();
      while (d > 0 && ++index[d - 1] == grid_[d - 1].size) index[--d] = 0;
      if (d == 0) return false;
    }
  }

 private:
  struct Dimension {
    uint64_t size;
    uint64_t stride;
    uint64_t reach;  // from the first to past the last byte of what lies at one index
  };
  static uint64_t next(std::span<const Dimension> grid, uint64_t first, uint64_t last, uint64_t address);
  uint64_t run_end(std::span<const Dimension> grid, uint64_t first, uint64_t address) const;
  // The first scattered run that ends after the address.
  Runs::const_iterator scattered_after(uint64_t address) const;
  uint64_t next_scattered(uint64_t address) const;
  bool contains_all(const Region& other) const;
  uint64_t num_runs() const;

  ByteRange range_;
  uint64_t run_ = 0;                       // the length of a run; scattered, of the first
  std::vector<Dimension> grid_;            // largest stride first
  std::shared_ptr<const Runs> scattered_;  // null: the runs are in the grid
};

}  // namespace torch_mtia::sanitizer
