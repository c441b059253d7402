// What BlockAllocator is made of. For the files of the allocator only.
#pragma once

#include "AllocatorHistory.h"
#include "BlockAllocator.h"
#include "PendingFrees.h"
#include "Pools.h"
#include "Segments.h"
#include "SmallMutex.h"
#include "Windows.h"

namespace torch_mtia::core {

// Note [Locks of the allocator]
// `mutex` guards everything. It is held while calling the driver, but never for a call that waits for the device: a
// thread that frees needs it, and may be the one that lets the device go on. Who waits for the device to give segments
// back holds no lock at all, not even the interpreter's: what is waited for may be work that allocates itself. Order:
// mutex, the driver's own locks. Pools, Segments, Windows and PendingFrees have no lock of their own: their functions
// are called with `mutex`, as are those of State whose name ends in `_locked`.
struct BlockAllocator::State {
  State(int32_t device, OptionsSource options) : device(device), segments(device, options, pools, history) {}

  const int32_t device;
  mutable SmallMutex mutex;
  AllocatorHistory history;
  Pools pools;
  Segments segments;
  Windows windows;
  PendingFrees pending{windows};

  // BlockAllocator::allocate: the first has a way without a look at the driver for small blocks.
  Block* allocate_quickly(size_t size, Stream* stream);
  Block* allocate(size_t size, Stream* stream);
  Segments::Attempt try_allocate(size_t size, size_t requested, Stream* stream, TraceContext& context,
                                 bool may_collect);
  // The block waits for no other stream; open windows of its own stream hold it.
  void release_locked(Block* block) noexcept {
    if (!windows.hold(block)) segments.release(block);
  }
  void release_completed_locked() {
    pending.take_completed([this](Block* block) { release_locked(block); });
  }
  // `stream`, which uses the freed block, can be marked now.
  void mark_late_locked(Block* block, Stream* stream) noexcept {
    if (pending.mark_late(block, stream)) release_locked(block);
  }

  // Returns to the driver the free segments that `chosen` is true for, after waiting for the device; inside running
  // work, without waiting, those that no work uses.
  void reclaim(const Segments::Choice& chosen);
  void reclaim_all();
  void collect_garbage(uint64_t bytes);
};

}  // namespace torch_mtia::core
