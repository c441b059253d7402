// The operands of a kernel that goes through tensors in logical (row-major) order, whatever their strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "../core/Operands.h"

namespace torch_mtia {

// Up to four device tensors of equal sizes, as host addresses and strides. Plain data: a work item may keep it. Made of
// contiguous tensors, it allocates nothing.
class StridedElements {
 public:
  static constexpr int kMaxOperands = 4;

  // Outputs first; a lazily cloned storage of an output is made its own.
  StridedElements(std::initializer_list<const at::TensorBase*> tensors, int num_outputs);

  int64_t numel() const { return numel_; }
  bool contiguous() const { return sizes_.empty(); }

  // The first of the elements from `first`; only where contiguous().
  template <typename T>
  T* at(int operand, int64_t first) const {
    return static_cast<T*>(operands_[operand].data) + first;
  }

  // The `count` elements from `first` of an input: in place, or gathered in `buffer`.
  template <typename T>
  const T* read(int operand, int64_t first, int64_t count, T* buffer) const {
    if (contiguous()) return at<T>(operand, first);
    walk(operand, first, count, [&](int64_t i, char* address) { buffer[i] = *reinterpret_cast<T*>(address); });
    return buffer;
  }

  template <typename T>
  void write(int operand, int64_t first, int64_t count, const T* values) const {
    if (contiguous()) {
      T* to = at<T>(operand, first);
      for (int64_t i = 0; i < count; ++i) to[i] = values[i];
      return;
    }
    walk(operand, first, count, [&](int64_t i, char* address) { *reinterpret_cast<T*>(address) = values[i]; });
  }

  void list_operands(core::OperandSink& sink) const;

 private:
  struct Operand {
    void* data;
    int64_t element_size;
    c10::ScalarType dtype;
  };

  int64_t stride(int operand, int64_t dim) const { return strides_[operand * sizes_.size() + dim]; }

  // Calls visit(i, address of element first + i) for i < count.
  template <typename Visit>
  void walk(int operand, int64_t first, int64_t count, Visit visit) const {
    std::array<int64_t, kMaxDims> index;
    const auto ndim = static_cast<int64_t>(sizes_.size());
    char* address = static_cast<char*>(operands_[operand].data);
    int64_t rest = first;
    for (int64_t dim = ndim - 1; dim >= 0; --dim) {
      index[dim] = rest % sizes_[dim];
      rest /= sizes_[dim];
      address += index[dim] * stride(operand, dim);
    }
    const int64_t inner_stride = stride(operand, ndim - 1);
    for (int64_t i = 0; i < count; ++i) {
      visit(i, address);
      address += inner_stride;
      if (++index[ndim - 1] < sizes_[ndim - 1]) continue;
      for (int64_t dim = ndim - 1; dim > 0 && index[dim] == sizes_[dim]; --dim) {
        index[dim] = 0;
        address += stride(operand, dim - 1) - sizes_[dim] * stride(operand, dim);
        ++index[dim - 1];
      }
    }
  }

  static constexpr int kMaxDims = 64;  // as in ATen

  int64_t numel_;
  int num_operands_;
  int num_outputs_;
  std::array<Operand, kMaxOperands> operands_;
  std::vector<int64_t> sizes_;    // empty: all operands are contiguous
  std::vector<int64_t> strides_;  // in bytes, operand after operand
};

}  // namespace torch_mtia
