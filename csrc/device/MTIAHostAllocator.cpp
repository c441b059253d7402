#include "MTIAHostAllocator.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "../core/BlockAllocator.h"
#include "../core/Event.h"
#include "../core/Hooks.h"
#include "../core/Waits.h"
#include "../runtime/forks.h"
#include "DeviceType.h"
#include "MTIAGraph.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

constexpr size_t kPageSize = 4096;

// The pieces of host memory that are pinned.
class PinnedRanges {
 public:
  PinnedRanges() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  void insert(const void* address, size_t size) {
    const std::lock_guard lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(address)] = size;
  }
  void erase(const void* address) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(address));
  }
  // The start of the piece that an address lies in; null: it is not pinned.
  void* start_of(const void* address) const {
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    const auto behind = ranges_.upper_bound(wanted);
    if (behind == ranges_.begin()) return nullptr;
    const auto& [start, size] = *std::prev(behind);
    return wanted < start + size ? reinterpret_cast<void*>(start) : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

PinnedRanges& pinned_ranges() {
  static auto* const ranges = new PinnedRanges();  // leaked, like the allocator
  return *ranges;
}

// The software device reaches all host memory, so that pinning is only a promise: the memory stays until copies that
// were submitted are done. That is what makes a copy that does not wait possible.
//
// Upstream's mutexes are not on the list of Note [Forks] (runtime/forks.h), which cannot reach them. So nothing here
// takes one of them in a forked child: what is freed there stays as it is, and all else raises.
class HostAllocatorImpl final : public at::CachingHostAllocatorImpl<c10::Stream, core::Event> {
 public:
  std::pair<void*, void*> allocate(size_t size) override {
    runtime::check_not_forked();
    if (core::Graph::any_capture()) {
      if (MTIAGraph* graph = MTIAGraph::of(MTIAStream::current(current_device()))) graph->use_host_pool();
    }
    free_late();
    return CachingHostAllocatorImpl::allocate(size);
  }

  // Called by deleters.
  void free(void* block) noexcept override {
    if (runtime::is_forked()) return;
    try {
      if (used_by_running_work(block)) {
        const std::lock_guard lock(late_mutex_);
        late_.push_back(block);
        return;
      }
    } catch (...) {
      return;  // as in free_now
    }
    free_late();
    free_now(block);
  }

  bool record_event(void* pointer, void* block, c10::Stream stream) override {
    runtime::check_not_forked();
    return CachingHostAllocatorImpl::record_event(pointer, block, stream);
  }

  void empty_cache() override {
    if (runtime::is_forked()) return;
    free_late();
    CachingHostAllocatorImpl::empty_cache();
  }

 private:
  void allocate_host_memory(size_t size, void** pointer) override {
    ensure_initialized();
    *pointer = std::aligned_alloc(kPageSize, (size + kPageSize - 1) / kPageSize * kPageSize);
    TORCH_CHECK_WITH(OutOfMemoryError, *pointer != nullptr, "the host has no ", size, " bytes to pin");
    pinned_ranges().insert(*pointer, size);
  }

  void free_block(at::HostBlock<c10::Stream>* block) override {
    pinned_ranges().erase(block->ptr_);
    std::free(block->ptr_);
  }

  void record_stream(std::optional<std::vector<core::Event>>& events, c10::Stream stream) override {
    const MTIAStream used_in(stream);
    // An event would stand for a point in the graph. Without one, the memory is never given out again.
    if (used_in.core().graph() != nullptr) return;
    core::Event event(/*enable_timing=*/false);
    event.record(used_in.core());
    events->push_back(std::move(event));
  }

  // Called before the block is freed. It is handed out again after events of the streams that use it.
  static void report_reuse(void* context) {
    core::Observer* observer = core::current_observer();
    if (observer == nullptr || context == nullptr) return;
    auto* block = static_cast<at::HostBlock<c10::Stream>*>(context);
    const std::lock_guard lock(block->mutex_);
    for (const c10::Stream& stream : block->streams_) {
      observer->reuse_waits_for(MTIAStream(stream).core(), reinterpret_cast<uint64_t>(block->ptr_), block->size_);
    }
  }

  // Whether the calling thread is inside an item of a stream that uses the block.
  static bool used_by_running_work(void* context) {
    if (context == nullptr || !core::RunningWork::on_this_thread()) return false;
    auto* block = static_cast<at::HostBlock<c10::Stream>*>(context);
    const std::lock_guard lock(block->mutex_);
    return std::any_of(block->streams_.begin(), block->streams_.end(), [](const c10::Stream& stream) {
      return core::RunningWork::on_this_thread(&MTIAStream(stream).core());
    });
  }

  void free_now(void* block) noexcept {
    try {
      report_reuse(block);
      CachingHostAllocatorImpl::free(block);
    } catch (...) {
      // Nobody will know when the streams are done that use it: the device is lost, or the host is out of memory. The
      // memory is never given out again.
    }
  }

  void free_late() noexcept {
    if (core::RunningWork::on_this_thread()) return;
    std::vector<void*> blocks;
    {
      const std::lock_guard lock(late_mutex_);
      blocks.swap(late_);
    }
    for (void* block : blocks) free_now(block);
  }

  // Upstream may call it on a thread of its own.
  bool query_event(core::Event& event) noexcept override {
    try {
      return event.query();
    } catch (...) {
      return false;  // the device is lost
    }
  }

  c10::Stream get_current_stream() const override { return MTIAStream::current(current_device()).unwrap(); }

  bool stream_is_capturing(c10::Stream stream) const override { return MTIAStream(stream).core().graph() != nullptr; }

  // Blocks that running work has freed. An event that is recorded inside an item would stand for that item, and copies
  // may be queued after it. So the next call from outside frees them.
  std::mutex late_mutex_;
  std::vector<void*> late_;
};

void delete_host_block(void* context);

struct HostAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, delete_host_block> {
  at::HostStats get_stats() override {
    runtime::check_not_forked();
    return CachingHostAllocatorInterface::get_stats();
  }
  void reset_accumulated_stats() override {
    runtime::check_not_forked();
    CachingHostAllocatorInterface::reset_accumulated_stats();
  }
  void reset_peak_stats() override {
    runtime::check_not_forked();
    CachingHostAllocatorInterface::reset_peak_stats();
  }
};

HostAllocator& allocator() {
  static auto* const instance = new HostAllocator();  // leaked: tensors die after static destructors have run
  return *instance;
}

void delete_host_block(void* context) {
  allocator().free(context);
}

const DeviceTypeRegistration host_allocator_registration([](const RegisteredType& registered, bool active) {
  core::hooks.return_host_cache = [] { allocator().empty_cache(); };
  at::setHostAllocator(registered.type, active ? &allocator() : nullptr, /*priority=*/255);
});

}  // namespace

at::HostAllocator& host_allocator() {
  return allocator();
}

bool is_pinned(const void* address) {
  return pinned_ranges().start_of(address) != nullptr;
}

void record_pinned_use(const at::Tensor& tensor, const c10::Stream& stream) {
  // The storage may be somebody else's, of part of the memory: NumPy's, say.
  void* const start = pinned_ranges().start_of(tensor.const_data_ptr());
  const bool is_recorded = allocator().record_event(start, /*ctx=*/start, stream);
  TORCH_INTERNAL_ASSERT(is_recorded, "pinned memory at ", start, " has no block");
}

}  // namespace torch_mtia
