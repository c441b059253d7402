// The executor's own copy of a queued work item, and the recycling of the memory for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// A work item that owns its argument block, which lies right behind the slot.
struct alignas(16) QueueSlot {
  QueueSlot* next = nullptr;
  size_t capacity = 0;  // bytes of the argument block
  mtia_work work{};

  // Moves `source` with its argument block in. What is only valid during the launch (the spans) is left behind.
  void fill(const mtia_work& source) noexcept;
  // Destroys the argument block.
  void clear() noexcept;
};

// Argument blocks up to this size need no allocation once a stream has warmed up.
inline constexpr size_t kRecycledArguments = 512;
// Slots that a stream keeps for reuse.
inline constexpr size_t kRecycledSlots = 1024;

// An allocator: slots come from the heap and from a bounded free list. Not thread safe but for `create` and `destroy`.
class QueueSlotPool {
 public:
  // A recycled slot for `args_size` bytes; null: there is none, `create` one.
  QueueSlot* take(size_t args_size) noexcept;
  // False: the slot does not fit here, `destroy` it.
  bool recycle(QueueSlot* slot) noexcept;

  static QueueSlot* create(size_t args_size);  // throws std::bad_alloc
  static void destroy(QueueSlot* slot) noexcept;

 private:
  QueueSlot* free_ = nullptr;
  size_t num_free_ = 0;
};

}  // namespace torch_mtia::runtime::host
