// Bytes in memory that a strided tensor stands for, and whether two of them meet. No PyTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace torch_mtia::sanitizer {

// Runs of bytes that lie in a grid: at begin() + the sum of index * stride, for each index below a dimension's size.
// What lies side by side is one run, so of a dense tensor there is one. Or runs here and there.
class Region {
 public:
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;  // (begin, end)

  Region() = default;  // no bytes
  // Elements of `element_size` bytes; strides, of either sign, are in bytes.
  Region(uint64_t address, uint64_t element_size, std::span<const int64_t> sizes, std::span<const int64_t> strides);
  // Of runs that are apart, in ascending order; not none.
  explicit Region(Runs runs);
  static Region dense(uint64_t address, uint64_t size) { return Region(address, size, {}, {}); }

  bool empty() const { return run_ == 0; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }  // behind the last byte
  bool is_dense() const { return grid_.empty() && scattered_ == nullptr; }

  // The first byte at `address` or behind it; kNone: there is none.
  uint64_t next(uint64_t address) const {
    return scattered_ == nullptr ? next(grid_, begin_, end_, address) : next_scattered(address);
  }
  // Behind the last byte of a run that holds `address`, which belongs to the region.
  uint64_t run_end(uint64_t address) const;
  bool overlaps(const Region& other) const;
  bool overlaps(uint64_t begin, uint64_t end) const { return begin < end && next(begin) < end; }
  // Whether all bytes from `begin` to `end` belong to it; may say no where several runs together hold them.
  bool contains(uint64_t begin, uint64_t end) const { return is_dense() && begin_ <= begin && end <= end_; }
  // The same for all bytes of another one; may say no of those that lie in another grid.
  bool contains(const Region& other) const { return may_contain(other.begin_) && contains_all(other); }
  // Of one that begins there.
  bool may_contain(uint64_t begin) const { return begin_ <= begin && begin < (is_dense() ? end_ : begin_ + run_); }

 private:
  struct Dimension {
    uint64_t size;
    uint64_t stride;
    uint64_t reach;  // from the first byte to behind the last one of what lies at one index
  };
  static uint64_t next(std::span<const Dimension> grid, uint64_t first, uint64_t last, uint64_t address);
  uint64_t run_end(std::span<const Dimension> grid, uint64_t first, uint64_t address) const;
  // The first run that ends behind the address.
  Runs::const_iterator scattered_behind(uint64_t address) const;
  uint64_t next_scattered(uint64_t address) const;
  bool contains_all(const Region& other) const;
  bool meets_runs_of(const Region& other) const;
  uint64_t num_runs() const;

  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t run_ = 0;
  std::vector<Dimension> grid_;            // largest stride first
  std::shared_ptr<const Runs> scattered_;  // null: they lie in the grid
};

}  // namespace torch_mtia::sanitizer
