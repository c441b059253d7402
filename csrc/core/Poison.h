// Fills memory whose contents no program may rely on, so that one that does so gives wrong data. For BlockAllocator.cpp
// only, and called with its lock held. No PyTorch.
//
// Note [Poison]
// Fills are items of the block's stream, in the order of its other work: after what the stream did with the memory, and
// before what its next owner does. They are no work of the program, so no observer learns of them. Memory that the
// stream cannot order is written at once, by the calling thread:
// - Running work uses what it allocates before its stream runs anything else. What is free in its window, no other work
//   uses: see Note [Memory of running work] in BlockAllocator.h.
// - With launch blocking, the driver would wait for the fill under the lock of the allocator. Streams are idle then,
//   except while host functions run, whose memory stays as it is.
// Three kinds of memory stay as they are: that of captured graphs, which replays use at any time, and which a program
// may write between them; what is allocated or freed in a capture; and that of pools with allocators of their own,
// which may have taken it away.
#pragma once

#include <cstdint>

#include "Block.h"

namespace torch_mtia::core {

enum class Poison : uint8_t {
  kFresh = 0xFF,  // NaN in f64, f32, f16, bf16, float8_e4m3fn, float8_e5m2 and float8_e8m0fnu
  kFreed = 0xCC,
};

// The block is handed out to the calling thread (kFresh), or its own stream is the last to use it (kFreed).
// `in_own_window`: running work frees a block that it allocated in its window.
void poison(const Block& block, Poison pattern, bool in_own_window = false) noexcept;

}  // namespace torch_mtia::core
