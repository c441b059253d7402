// The stream-ordered allocator of one device. No PyTorch.
//
// Note [Stream-ordered memory]
// A block belongs to the stream it was allocated for. Freeing it never waits: work already submitted to that stream
// still finds its memory, because whoever gets the block next submits behind it. To another stream a block goes only
// after the device is known to be done with it: when a segment is returned to the driver, and, for a block that other
// streams used (`record_stream`), when an event recorded on each of them at the time of the free is complete.
//
// Note [Memory of running work]
// Work that allocates while it runs (the CPU fallback does) breaks the order above: it runs at one point of the stream,
// but the free list has grown by blocks that were freed later, behind work that is queued behind it. So such work opens
// a window before it is submitted and closes it when it is done. Blocks of the stream that are freed in between become
// free when the window closes, except those that running work itself frees, which nobody else has seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

class Stream;

// A piece of a segment. Handed out by BlockAllocator::allocate, owned by the allocator.
struct Block;

mtia_device_ptr block_address(const Block* block);
size_t block_size(const Block* block);            // rounded bytes
size_t block_requested_size(const Block* block);  // bytes asked for
Stream* block_stream(const Block* block);

// One figure of the statistics, in the sense of c10::CachingAllocator::Stat.
struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // increases since the last reset_accumulated
  int64_t freed = 0;
};

struct AllocatorStats {
  Stat allocation;       // blocks in use or waiting for events
  Stat segment;          // segments held from the driver
  Stat active;           // blocks in use or waiting for events
  Stat allocated_bytes;  // rounded bytes in use
  Stat reserved_bytes;   // bytes of segments
  Stat active_bytes;
  Stat inactive_split_bytes;  // free bytes in segments that are partly in use
  Stat requested_bytes;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
};

// Raised when the device's memory is used up even after the cache was emptied. The figures are those of the message
// that the upper layer writes.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  OutOfDeviceMemory(size_t requested, uint64_t device_free, uint64_t device_total)
      : std::runtime_error("out of device memory"),
        requested(requested),
        device_free(device_free),
        device_total(device_total) {}
  const size_t requested;
  const uint64_t device_free;
  const uint64_t device_total;
};

// Thread safe. Leaked: blocks are freed from any thread until the process ends.
class BlockAllocator {
 public:
  static BlockAllocator* create(int32_t device);

  // At least `size` > 0 bytes, rounded to 512, for work of `stream`.
  // Throws OutOfDeviceMemory, after returning the cache to the driver and trying again.
  Block* allocate(size_t size, Stream* stream);
  void free(Block* block) noexcept;
  // The same for running work in its own window, of a block that it allocated there.
  void free_while_running(Block* block) noexcept;

  // See Note [Memory of running work]. Windows of several threads may overlap.
  void open_window(Stream* stream);
  void close_window(Stream* stream) noexcept;

  // `stream` uses the block too: free() lets it go only when the work that `stream` has by then is done.
  void record_stream(Block* block, Stream* stream);

  // Waits for the device and returns every segment without a block in use to the driver.
  void empty_cache();

  // The requested bytes of every block that is handed out, in ascending order: freed blocks that wait for events are
  // not among them.
  std::vector<mtia_span> live_spans() const;

  AllocatorStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();

 private:
  struct State;
  explicit BlockAllocator(int32_t device);
  State* state_;  // leaked with the allocator
};

}  // namespace torch_mtia::core
