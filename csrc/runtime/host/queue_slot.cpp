#include "queue_slot.h"

#include <algorithm>
#include <new>

#include "work.h"

namespace torch_mtia::runtime::host {

void QueueSlot::fill(const mtia_work& source) noexcept {
  void* block = this + 1;
  move_arguments(block, source);
  work = source;
  work.args = block;
}

void QueueSlot::clear() noexcept {
  if (work.destroy != nullptr) work.destroy(work.args);
}

QueueSlot* QueueSlotPool::take(size_t args_size) noexcept {
  if (free_ == nullptr || args_size > kRecycledArguments) return nullptr;
  QueueSlot* slot = free_;
  free_ = slot->next;
  --num_free_;
  return slot;
}

bool QueueSlotPool::recycle(QueueSlot* slot) noexcept {
  if (slot->capacity != kRecycledArguments || num_free_ == kRecycledSlots) return false;
  slot->next = free_;
  free_ = slot;
  ++num_free_;
  return true;
}

QueueSlot* QueueSlotPool::create(size_t args_size) {
  const size_t capacity = std::max(args_size, kRecycledArguments);
  void* memory = ::operator new(sizeof(QueueSlot) + capacity);  // aligned to 16, as argument blocks are at most
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= alignof(QueueSlot));
  auto* slot = ::new (memory) QueueSlot;
  slot->capacity = capacity;
  return slot;
}

void QueueSlotPool::destroy(QueueSlot* slot) noexcept {
  slot->~QueueSlot();
  ::operator delete(slot);
}

}  // namespace torch_mtia::runtime::host
