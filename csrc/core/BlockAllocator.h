// The stream-ordered allocator of one device. No PyTorch.
//
// Note [Stream-ordered memory]
// A block belongs to the stream it was allocated for. Freeing it never waits: work already submitted to that stream
// still finds its memory, because the next user of the block submits its work after it. Another stream gets the memory
// only after the device is done with it: after a segment is returned to the driver. A block that other streams used
// (`record_stream`) is reused when events recorded on them at the time of the free are complete.
//
// Note [Private pools]
// A pool is memory of its own: blocks of one are neither taken from nor merged with those of another. Allocations go to
// the default pool unless their stream, or else their thread, is directed to a private one. Captured graphs direct
// streams, torch_mtia.memory.use_mem_pool threads. Captured graphs have private pools, because their
// addresses stay in use between replays although no tensor owns them. Segments of a private pool go back to the driver
// only after the last user of the pool has released it, and after the work queued in streams where the graphs were
// launched: that work reads the graphs' results, whose blocks belong to the streams of the capture. A block that is
// freed in a capture, and that other streams of the capture use, becomes free when their capture ends: nothing orders
// it earlier.
//
// Note [Expandable segments]
// Memory that was cut into segments for blocks of one size may not serve a larger request, however much of it is free.
// With the option expandable_segments each stream and pool reserves a range of device addresses as large as the
// device's memory instead, a single segment for its large blocks, and memory is mapped into it where it is needed. A
// part that has no memory is a block too, which is `mapped` not and in no list. Small blocks keep their segments, and
// so does a request for which the range has no place.
//
// Note [Memory of running work]
// Work that allocates while it runs (the CPU fallback and host functions) breaks stream order: the free list has blocks
// that queued work, which runs later, still uses. So such work opens a window before it is submitted, and closes it
// when it is done. Blocks of the stream that are freed in between become free when the window closes, except blocks
// that the running work itself allocated and freed. So no work uses the blocks that are free in a window: they may even
// be returned to the driver.
//
// Running work (see Waits.h) does not wait. When it finds no memory, it reclaims idle segments, or throws
// OutOfDeviceMemory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia::core {

class Stream;

// A block that the program has.
struct BlockInfo {
  mtia_device_ptr address;
  size_t size;               // rounded bytes
  size_t requested;          // bytes asked for
  Stream* stream;            // that it was allocated for
  uint64_t captures_before;  // captures that had ended when it was allocated
  const void* tag;           // by set_tag
};

// One figure of the statistics, in the sense of c10::CachingAllocator::Stat.
struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // increases since the last reset_accumulated
  int64_t freed = 0;
};

// All blocks, those in segments of small blocks, and the others: the indices of c10::CachingAllocator::StatType.
enum StatIndex : size_t { kAll = 0, kSmall = 1, kLarge = 2 };
using StatArray = std::array<Stat, 3>;

struct AllocatorStats {
  StatArray allocation;       // blocks in use
  StatArray segment;          // segments held from the driver
  StatArray active;           // blocks in use or waiting for events
  StatArray inactive_split;   // free blocks in segments that are partly in use
  StatArray allocated_bytes;  // rounded bytes in use
  StatArray reserved_bytes;   // bytes of segments
  StatArray active_bytes;
  StatArray inactive_split_bytes;
  StatArray requested_bytes;
  Stat oversize_allocations;  // blocks of more than max_split_size
  Stat oversize_segments;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;
};

// The settings of PYTORCH_ALLOC_CONF. Read for every request of a large block: they may change.
struct AllocatorOptions {
  size_t max_split_size = std::numeric_limits<size_t>::max();  // larger blocks are not cut
  size_t max_non_split_rounding = size_t{20} << 20;            // how much larger such a block may be than the request
  double garbage_collection_threshold = 0;  // fraction of the memory limit; 0: collect only when memory is used up
  bool expandable_segments = false;         // where the driver has virtual memory
};

using WindowId = uint64_t;
using PoolId = std::pair<uint64_t, uint64_t>;  // {0, 0}: the default pool
using DirectionId = uint64_t;

// Where the segments of a pool come from, in place of the driver: functions with the signatures that
// torch.cuda.memory.CUDAPluggableAllocator asks for. Called with the allocator's lock held. `stream` is the driver's.
struct SegmentSource {
  void* (*allocate)(size_t size, int device, void* stream) = nullptr;  // null: out of memory
  void (*free)(void* address, size_t size, int device, void* stream) = nullptr;
};

// History and snapshots, in the terms of c10::CachingDeviceAllocator.
enum class TraceAction {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOutOfMemory
};
using TraceContext = std::shared_ptr<void>;  // where in the program it happened

struct TraceEntry {
  TraceAction action;
  uint64_t address;  // kOutOfMemory: the free bytes of the device
  size_t size;
  const Stream* stream;
  PoolId pool;
  int64_t time_us;  // since the epoch
  TraceContext context;
};

struct BlockSnapshot {
  uint64_t address;
  size_t size;
  size_t requested;
  bool allocated;
  bool active;  // allocated, or waiting for events
  TraceContext context;
};

// A segment, or a mapped range of an expandable one.
struct SegmentSnapshot {
  uint64_t address;
  size_t size = 0;
  const Stream* stream;
  PoolId pool;
  bool is_large;
  bool is_expandable;
  TraceContext context;
  std::vector<BlockSnapshot> blocks = {};
};

// What is recorded from now on.
struct HistoryOptions {
  bool enabled = false;
  size_t max_entries = 0;  // the oldest are dropped; 0: blocks keep contexts, but no history
  std::function<TraceContext()> context_of_alloc = nullptr;  // null: no contexts
  std::function<TraceContext()> context_of_free = nullptr;
};

// Raised when the device's memory is used up even after the cache was emptied. The layer above writes the message.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  // `reason`: the driver's, with a remedy; "": the driver was not asked.
  OutOfDeviceMemory(size_t requested, uint64_t device_free, uint64_t device_total, const std::string& reason)
      : std::runtime_error(reason), requested(requested), device_free(device_free), device_total(device_total) {}
  const size_t requested;
  const uint64_t device_free;
  const uint64_t device_total;
};

// Thread safe. Leaked: blocks are freed from any thread until the process ends.
class BlockAllocator {
 public:
  using OptionsSource = AllocatorOptions (*)();
  static BlockAllocator* create(int32_t device, OptionsSource options);
  int32_t device() const;

  // At least `size` > 0 bytes, rounded to 512, for work of `stream`, of the pool that the stream is directed to.
  // Throws OutOfDeviceMemory, after returning the cache to the driver and trying again.
  mtia_device_ptr allocate(size_t size, Stream* stream);
  // Returns the block's rounded size. 0: no block in use begins at the address, and nothing happens. `in_own_window`:
  // running work frees a block that it allocated in its window.
  size_t free(mtia_device_ptr address, bool in_own_window = false) noexcept;

  // Empty: no block in use begins at the address.
  std::optional<BlockInfo> find(mtia_device_ptr address) const noexcept;
  // Attaches a value of the layer above to the block in use that begins at the address, if there is one. Null: none, as
  // at first. The tag ends with the use.
  void set_tag(mtia_device_ptr address, const void* tag) noexcept;
  std::vector<BlockInfo> tagged() const;  // the blocks with tags

  // See Note [Memory of running work]. Windows may overlap.
  WindowId open_window(Stream* stream);
  void close_window(Stream* stream, WindowId id) noexcept;

  // `stream` uses the block too, which after free() is reused only when the work that `stream` has by then is done.
  // Returns the stream that the block was allocated for. Null: no block in use begins at the address.
  Stream* record_stream(mtia_device_ptr address, Stream* stream);

  // Waits for the device (except in running work) and returns every segment without a block in use to the driver: of
  // the default pool and of private pools without users, or of the given pool only. Segments of streams that are being
  // captured stay.
  void empty_cache();
  void empty_cache(PoolId pool);

  // See Note [Private pools]. A pool exists from its first use. Each use_pool is balanced by one release_pool.
  void use_pool(PoolId pool);
  void release_pool(PoolId pool);
  void direct_to_pool(Stream* stream, PoolId pool);
  // Graphs with memory in the pool are launched in the stream: its work, too, may read memory of the pool.
  void use_pool_in(PoolId pool, Stream* stream);
  void direct_to_default_pool(Stream* stream);  // if the stream was captured: after that
  // The source of a pool that has no segment yet.
  void set_source(PoolId pool, const SegmentSource& source);
  // The latest direction of the calling thread that has not ended counts. Any thread may end it.
  DirectionId direct_thread_to_pool(PoolId pool);
  void end_direction(DirectionId id);  // throws std::invalid_argument if it has ended

  // The fraction of the device's memory that the allocator may hold. Initially 1.
  void set_memory_fraction(double fraction);
  double memory_fraction() const;

  // Forgets the history so far.
  void record_history(HistoryOptions options);
  std::vector<TraceEntry> history() const;  // the oldest first
  std::vector<SegmentSnapshot> snapshot();  // in order of address; notes itself in the history

  // The requested bytes of the blocks in use, ascending.
  std::vector<mtia_span> live_ranges() const;

  // For tests: whether all data structures agree.
  bool is_valid() const;

  AllocatorStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();

 private:
  struct State;
  BlockAllocator(int32_t device, OptionsSource options);
  State* state_;  // leaked with the allocator
};

}  // namespace torch_mtia::core
