// Bytes in memory that a strided tensor stands for, and whether two of them meet. No PyTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace torch_mtia::sanitizer {

// Runs of bytes that lie in a grid: at begin() + the sum of index * stride, for each index below a dimension's size.
// What lies side by side is one run, so of a dense tensor there is one. Or runs here and there.
class Region {
 public:
  Region() = default;  // no bytes
  // Elements of `element_size` bytes; strides, of either sign, are in bytes.
  Region(uint64_t address, uint64_t element_size, std::span<const int64_t> sizes, std::span<const int64_t> strides);
  // Of runs (begin, end) that are apart, in ascending order; not none.
  explicit Region(std::vector<std::pair<uint64_t, uint64_t>> runs);
  static Region dense(uint64_t address, uint64_t size) { return Region(address, size, {}, {}); }

  bool empty() const { return run_ == 0; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }  // behind the last byte
  bool is_dense() const { return grid_.empty() && scattered_ == nullptr; }

  bool overlaps(const Region& other) const;
  bool overlaps(uint64_t begin, uint64_t end) const {
    return scattered_ == nullptr ? meets(grid_, begin_, end_, begin, end) : meets_scattered(begin, end);
  }
  // Whether all bytes from `begin` to `end` belong to it; may say no where several runs together hold them.
  bool contains(uint64_t begin, uint64_t end) const { return is_dense() && begin_ <= begin && end <= end_; }

 private:
  struct Dimension {
    uint64_t size;
    uint64_t stride;
    uint64_t reach;  // from the first byte to behind the last one of what lies at one index
  };
  static bool meets(std::span<const Dimension> grid, uint64_t first, uint64_t last, uint64_t begin, uint64_t end);
  bool meets_scattered(uint64_t begin, uint64_t end) const;
  bool meets_runs_of(const Region& other) const;
  uint64_t num_runs() const;

  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t run_ = 0;
  std::vector<Dimension> grid_;                                                  // largest stride first
  std::shared_ptr<const std::vector<std::pair<uint64_t, uint64_t>>> scattered_;  // null: they lie in the grid
};

}  // namespace torch_mtia::sanitizer
