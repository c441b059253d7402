// Device memory as c10 sees it: an adaptor over core::BlockAllocator. The counterpart of CUDACachingAllocator.h.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <mutex>
#include <vector>

#include "../core/BlockAllocator.h"
#include "MTIAFunctions.h"

namespace torch_mtia {

class MTIACachingAllocator final : public c10::DeviceAllocator {
 public:
  static MTIACachingAllocator& get();
  // Of one device, which is initialized if need be.
  static core::BlockAllocator& of(c10::DeviceIndex device);

  // Memory of the current device, for work of its current stream. Raises torch.OutOfMemoryError.
  c10::DataPtr allocate(size_t size) override;

  // The same in two steps: a block, and its DataPtr, which frees it. Its context is the address.
  static void* allocate_block(size_t size);
  static c10::DataPtr wrap_block(c10::DeviceIndex device, void* address);
  // The allocator of the block in use that begins at the address. Null: there is none.
  static core::BlockAllocator* owner_of(const void* address) noexcept;
  // The tag of blocks that are memory of the CPU for now: see Note [Fallback allocation].
  static const void* tag_of_host_memory();

  // Whether a graph may use the memory, or may come to use it: see Note [Lazy clones and graphs].
  static bool may_be_of_graph(const c10::StorageImpl& storage);
  // Of both storages, after c10 has made a lazy clone: one that runs out of memory when it is written still shares what
  // it shared.
  static void finish_lazy_clone(c10::StorageImpl& storage);

  // Called before an OutOfMemoryError is raised, on the thread that raises it. Observers may attach others.
  using OutOfMemoryObserver =
      std::function<void(int64_t device, size_t requested, size_t device_total, size_t device_free)>;
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer);

  // See Note [Memory of running work] in BlockAllocator.h.
  class Window {
   public:
    explicit Window(core::Stream& stream);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

   private:
    core::Stream& stream_;
    const core::WindowId id_;
  };

  c10::DeleterFnPtr raw_deleter() const override;
  // On the current stream of the current device, which is that of the memory.
  void copy_data(void* to, const void* from, size_t size) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  [[noreturn]] void raise_out_of_memory(c10::DeviceIndex device, const core::OutOfDeviceMemory& error);
  void notify_out_of_memory_observers(c10::DeviceIndex device, const core::OutOfDeviceMemory& error);

  std::mutex observers_mutex_;
  std::vector<OutOfMemoryObserver> observers_;
};

// Gives the storage `size` bytes, keeping what fits: allocates, copies on the current stream, frees in stream order.
// ATen's own function copies on the host. Raises RuntimeError for a storage that is not resizable.
void resize_storage(c10::StorageImpl* storage, size_t size);
// The same, with the new memory. The old is freed in stream order.
void move_storage(c10::StorageImpl* storage, c10::DataPtr to, size_t size);

}  // namespace torch_mtia
