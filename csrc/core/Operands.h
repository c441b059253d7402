// The device memory that work touches, tensor by tensor. No PyTorch.
#pragma once

#include <cstdint>
#include <span>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

// How work uses the old bytes of an operand.
enum class OldBytes : uint8_t {
  kRead,           // all of them are read
  kReadInPart,     // some are, mostly chosen by data
  kPassedThrough,  // none affects the result, but some may stay, or be copied, as they are
  kOverwritten,    // all are written, and none is read before
};

// Elements at address + the sum of index * stride * stride_unit, in bytes, for each index below a dimension's size.
struct Operand {
  uint64_t address;
  uint64_t element_size;
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
  int64_t stride_unit;  // 1, or the size of an element
  bool writes;
  OldBytes old_bytes;
  const char* dtype;                    // for messages; "" for bytes
  std::span<const int64_t> shape = {};  // of the tensor, for messages; empty: the sizes
  bool is_shared = false;               // of host memory: the program may use it while the work runs
};

// Receives the operands of a work item.
class OperandSink {
 public:
  virtual void add(const Operand& operand) = 0;
  // Host memory that the work reads, and its scalar arguments. Valid during the call.
  virtual void add_host(const Operand& /*operand*/) {}

 protected:
  ~OperandSink() = default;
};

// Lists the operands of work. Null: they are not known.
using OperandList = void (*)(const void* work, OperandSink& sink);

// The format of mtia_work.accesses: from the first to the last byte.
class SpanSink final : public OperandSink {
 public:
  SpanSink(mtia_access* list, uint32_t capacity) : list_(list), capacity_(capacity) {}

  void add(const Operand& operand) override {
    int64_t lowest = 0;
    int64_t highest = static_cast<int64_t>(operand.element_size);
    for (size_t d = 0; d < operand.sizes.size(); ++d) {
      if (operand.sizes[d] == 0) highest = lowest = 0;
    }
    for (size_t d = 0; d < operand.sizes.size() && highest > 0; ++d) {
      const int64_t reach = (operand.sizes[d] - 1) * operand.strides[d] * operand.stride_unit;
      (reach < 0 ? lowest : highest) += reach;
    }
    if (count_ < capacity_) {
      list_[count_] = {{operand.address + lowest, static_cast<uint64_t>(highest - lowest)}, operand.writes};
    }
    ++count_;
  }
  uint32_t count() const { return count_; }

 private:
  mtia_access* list_;
  uint32_t capacity_;
  uint32_t count_ = 0;
};

}  // namespace torch_mtia::core
