// A part of a storage.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>

namespace torch_mtia {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  bool empty() const { return begin == end; }
  bool contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
  void extend(const ByteRange& other) {
    if (other.empty()) return;
    *this = empty() ? other : ByteRange{std::min(begin, other.begin), std::max(end, other.end)};
  }
};

// From the lowest to the highest byte of the elements.
inline ByteRange range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  const size_t itemsize = tensor.itemsize();
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * itemsize;
  return {begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), itemsize)};
}

}  // namespace torch_mtia
