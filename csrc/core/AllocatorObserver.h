// The events of allocators alone. Apart from Observer.h, which every kernel includes. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_mtia::core {

class Stream;

// Called on any thread.
class AllocatorObserver {
 public:
  // Memory, of the device or of the host, is given out again only after `stream` has done what it was given until now:
  // its allocator waits for an event of its own, or for the stream. May be called with locks of the allocator.
  virtual void reuse_waits_for(const Stream& stream, uint64_t address, uint64_t size) noexcept = 0;

 protected:
  ~AllocatorObserver() = default;
};

// Null: not observed. As an Observer, it lives as long as the process.
extern constinit std::atomic<AllocatorObserver*> allocator_observer;

}  // namespace torch_mtia::core
