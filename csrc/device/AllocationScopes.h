// A scope in which new CPU tensors get memory of the device.
//
// Note [Fallback allocation]
// The fallback runs an operator's CPU kernel. Its results belong on the device, and the largest of them would cost a
// copy. So PyTorch's allocator of CPU memory is replaced, once, by one that inside this scope, on this thread, hands
// out the host view of blocks of the device; a result is then adopted as it is. Everywhere else it passes through to
// the allocator that was there before. oneDNN allocates and frees by bare address, in and outside the scope, so a tag
// marks the blocks that the scope has handed out.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include "../processor/attributes.h"

namespace torch_mtia {

class DeviceAllocation {
 public:
  // Puts the allocator of all these scopes in its place. Called once, when the device is initialized.
  static void install();

  DeviceAllocation();
  ~DeviceAllocation();
  DeviceAllocation(const DeviceAllocation&) = delete;
  DeviceAllocation& operator=(const DeviceAllocation&) = delete;

  // Whether the memory was handed out in such a scope.
  static bool owns(const c10::DataPtr& data);
  // Turns it, without a copy, into memory of the device.
  static c10::DataPtr adopt(c10::DataPtr&& data);

 private:
  const bool previous_;
};

// A scope in which large pieces of new CPU memory, on this thread, are asked for like memory of the device: what the
// machine, or the container, has no room for raises torch.OutOfMemoryError. Else the kernel would kill the process when
// the memory is touched. It holds for the workspace of operators, oneDNN's included.
class CheckedWorkspace {
 public:
  CheckedWorkspace() : previous_(active_) { active_ = true; }
  ~CheckedWorkspace() { active_ = previous_; }
  CheckedWorkspace(const CheckedWorkspace&) = delete;
  CheckedWorkspace& operator=(const CheckedWorkspace&) = delete;

  static bool is_active() { return active_; }  // on this thread

 private:
  INITIAL_EXEC static constinit thread_local bool active_;

  const bool previous_;
};

// A scope in which new CPU tensors of certain sizes, on this thread, get certain memory.
//
// Note [Offered memory]
// Much of ATen's CPU code makes its results itself. Where the results belong is known before the code runs, so that
// memory is offered to it: the first allocation of just as many bytes takes it. What the code frees is offered again.
// Nothing says which allocation is which, so the results have to be looked for afterwards, and copied if they are not
// in their place. No tensor with offered memory may outlive the scope.
class MemoryOffer {
 public:
  MemoryOffer();
  ~MemoryOffer();
  MemoryOffer(const MemoryOffer&) = delete;
  MemoryOffer& operator=(const MemoryOffer&) = delete;

  void add(void* host_address, size_t nbytes);
  void close() { open_ = false; }  // offers nothing any more
  // From now on an allocation of other bytes raises Refused: to learn what code asks for, before it runs.
  void refuse_others() { refuses_others_ = true; }
  struct Refused {
    size_t nbytes;
  };

 private:
  friend class PassThroughAllocator;
  struct Piece {
    void* address;
    size_t nbytes;
    bool taken;
  };
  void* take(size_t nbytes);
  bool give_back(const void* address);

  MemoryOffer* const previous_;
  c10::SmallVector<Piece, 4> pieces_;
  bool open_ = true;
  bool refuses_others_ = false;
};

}  // namespace torch_mtia
