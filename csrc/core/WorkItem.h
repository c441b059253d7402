// A C++ callable as a work item of the driver: see Note [Work item] in mtia_runtime.h. And the operands that it lists:
// the device memory that work touches, tensor by tensor. No PyTorch.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

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

// Properties of a work item, for the driver.
struct WorkInfo {
  const char* name;                                                  // operator name, valid while the work exists
  uint64_t cost = 0;                                                 // estimated nanoseconds on one thread
  uint32_t flags = MTIA_WORK_MAY_RUN_INLINE | MTIA_WORK_CAPTURABLE;  // MTIA_WORK_*
  int32_t num_threads = 1;                                           // threads that the launching thread would use
};

// Stores an exception of work until its stream synchronizes. `stream_tag` is the core::Stream.
// Extensions use this header too.
[[gnu::visibility("default")]] void record_work_error(void* stream_tag, const char* name,
                                                      std::exception_ptr error) noexcept;
// The same for an item that a thread may wait for: see Awaited. False: no thread waits any more.
[[gnu::visibility("default")]] bool give_work_error(uint64_t awaited, const std::exception_ptr& error) noexcept;

// A callable that refers to the launching thread's stack until it is queued. Then `detach`, on the launching thread,
// makes it own what it refers to; an exception of `detach` is thrown when the work runs.
template <typename Callable>
concept Detachable = requires(Callable& callable) {
  { callable.detach() } noexcept;
};

// A callable that lists its operands.
template <typename Callable>
concept ListsOperands = requires(const Callable& callable, OperandSink& sink) { callable.list_operands(sink); };

// The argument block of a C++ work item: the callable and the name its errors are reported under. Callable:
// void(const mtia_work_context&), callable any number of times, movable without throwing.
template <typename Callable>
struct WorkBlock {
  static_assert(std::is_nothrow_move_constructible_v<Callable>);
  static_assert(alignof(Callable) <= 16);
  static constexpr bool kPlainBytes = std::is_trivially_copyable_v<Callable> && !Detachable<Callable>;

  Callable callable;
  const char* name;
  uint64_t awaited = 0;  // with launch blocking: the ticket of the thread that takes the exception. 0: the stream does

  static mtia_status run(void* args, const mtia_work_context* context) noexcept {
    auto* block = static_cast<WorkBlock*>(args);
    try {
      block->callable(*context);
      return MTIA_SUCCESS;
    } catch (...) {
      if (block->awaited != 0 && give_work_error(block->awaited, std::current_exception())) return MTIA_SUCCESS;
      record_work_error(context->stream_tag, block->name, std::current_exception());
      return MTIA_ERROR_LAUNCH_FAILED;
    }
  }
  static void relocate(void* to, void* from) noexcept {
    auto* block = ::new (to) WorkBlock(std::move(*static_cast<WorkBlock*>(from)));
    if constexpr (Detachable<Callable>) block->callable.detach();
  }
  static void destroy(void* args) noexcept { static_cast<WorkBlock*>(args)->~WorkBlock(); }
  static void list_operands(const void* args, OperandSink& sink) {
    static_cast<const WorkBlock*>(args)->callable.list_operands(sink);
  }
  static uint32_t accesses(const void* args, mtia_access* list, uint32_t capacity) noexcept {
    SpanSink spans(list, capacity);
    list_operands(args, spans);
    return spans.count();
  }
};

// Describes `block` as a work item. The block stays the caller's; the result is valid while both arguments live.
template <typename Callable>
mtia_work make_work(const WorkInfo& info, WorkBlock<Callable>& block) {
  mtia_work work{};
  work.struct_size = sizeof(mtia_work);
  work.flags = info.flags;
  work.run = &WorkBlock<Callable>::run;
  if constexpr (!WorkBlock<Callable>::kPlainBytes) {
    work.relocate = &WorkBlock<Callable>::relocate;
    work.destroy = &WorkBlock<Callable>::destroy;
  }
  work.args = &block;
  work.args_size = sizeof(block);
  work.name = info.name;
  work.cost = info.cost;
  work.num_threads = info.num_threads;
  if constexpr (ListsOperands<Callable>) work.accesses = &WorkBlock<Callable>::accesses;
  return work;
}

}  // namespace torch_mtia::core
