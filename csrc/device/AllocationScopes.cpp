#include "AllocationScopes.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <optional>

#include "../core/Driver.h"
#include "../runtime/machine_memory.h"
#include "HostView.h"
#include "MTIACachingAllocator.h"

namespace torch_mtia {
namespace {

// To ask takes some 20 us, and to touch so much memory a hundred times as long.
constexpr size_t kWorthAsking = size_t{16} << 20;

INITIAL_EXEC constinit thread_local bool tls_active = false;
INITIAL_EXEC constinit thread_local MemoryOffer* tls_offer = nullptr;

c10::DeleterFnPtr base_deleter = nullptr;

// The allocator of a block that was handed out in a scope. Null: it was not.
core::BlockAllocator* owner_of_host_memory(const void* block) {
  core::BlockAllocator* owner = MTIACachingAllocator::owner_of(block);
  const auto found = owner != nullptr ? owner->find(reinterpret_cast<uint64_t>(block)) : std::nullopt;
  return found && found->tag == MTIACachingAllocator::tag_of_host_memory() ? owner : nullptr;
}

void check_room_for_workspace(size_t size) {
  static const auto* const machine = new runtime::MachineMemory();
  if (size <= machine->read().available) return;
  malloc_trim(0);  // returns what the C library caches of freed host memory
  const auto figures = machine->read();
  TORCH_CHECK_WITH(OutOfMemoryError, size <= figures.available, "an operator needs ", size >> 20,
                   " MiB of workspace on the host, and ", figures.container ? "the container's limit" : "the machine",
                   " leaves ", figures.available >> 20,
                   " MiB. torch.accelerator.empty_cache() gives back what is cached; ", "smaller batches need less.");
}

}  // namespace

constinit thread_local bool CheckedWorkspace::active_ = false;

class PassThroughAllocator final : public c10::Allocator {
 public:
  explicit PassThroughAllocator(c10::Allocator* base) : base_(base) { base_deleter = base->raw_deleter(); }

  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return base_->allocate(size);
    if (tls_offer != nullptr) {
      if (void* address = tls_offer->take(size)) return wrap(address);
    }
    if (!tls_active) {
      if (size >= kWorthAsking && CheckedWorkspace::is_active()) check_room_for_workspace(size);
      return base_->allocate(size);
    }
    void* const block = MTIACachingAllocator::allocate_block(size);
    MTIACachingAllocator::of(current_device())
        .set_tag(reinterpret_cast<uint64_t>(block), MTIACachingAllocator::tag_of_host_memory());
    return wrap(HostView::to_host(block));
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }
  c10::DeleterFnPtr raw_deleter() const override { return base_deleter == nullptr ? nullptr : &delete_by_address; }
  void copy_data(void* to, const void* from, size_t size) const override { base_->copy_data(to, from, size); }

  // Frees memory of any kind, by its address alone.
  static void delete_by_address(void* address) {
    if (tls_offer != nullptr && tls_offer->give_back(address)) return;
    if (!HostView::available()) return base_deleter(address);
    void* const block = HostView::to_device(address);
    if (core::BlockAllocator* owner = owner_of_host_memory(block)) {
      owner->free(reinterpret_cast<uint64_t>(block), /*in_own_window=*/tls_active);
    } else if (!core::device_of_address(block)) {
      base_deleter(address);
    }  // else it is offered on another thread, where its owner frees it
  }

 private:
  static c10::DataPtr wrap(void* address) {
    return {address, address, &delete_by_address, c10::Device(c10::DeviceType::CPU)};
  }

  c10::Allocator* const base_;
};

void DeviceAllocation::install() {
  // A first use that fails later tries all of it again.
  static auto* const allocator = new PassThroughAllocator(c10::GetCPUAllocator());  // leaked, as every allocator
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

DeviceAllocation::DeviceAllocation() : previous_(tls_active) {
  tls_active = true;
}

DeviceAllocation::~DeviceAllocation() {
  tls_active = previous_;
}

bool DeviceAllocation::owns(const c10::DataPtr& data) {
  return data.get_deleter() == &PassThroughAllocator::delete_by_address;
}

c10::DataPtr DeviceAllocation::adopt(c10::DataPtr&& data) {
  void* const block = HostView::to_device(data.get());
  core::BlockAllocator* owner = owner_of_host_memory(block);
  TORCH_INTERNAL_ASSERT(owner != nullptr);
  data.release_context();
  owner->set_tag(reinterpret_cast<uint64_t>(block), nullptr);
  return MTIACachingAllocator::wrap_block(static_cast<c10::DeviceIndex>(owner->device()), block);
}

MemoryOffer::MemoryOffer() : previous_(tls_offer) {
  tls_offer = this;
}

MemoryOffer::~MemoryOffer() {
  tls_offer = previous_;
}

void MemoryOffer::add(void* host_address, size_t nbytes) {
  if (nbytes != 0) pieces_.push_back({host_address, nbytes, /*taken=*/false});
}

void* MemoryOffer::take(size_t nbytes) {
  if (!open_) return nullptr;
  for (Piece& piece : pieces_) {
    if (piece.taken || piece.nbytes != nbytes) continue;
    piece.taken = true;
    return piece.address;
  }
  if (refuses_others_) throw Refused{nbytes};
  return nullptr;
}

bool MemoryOffer::give_back(const void* address) {
  for (Piece& piece : pieces_) {
    if (piece.address != address) continue;
    piece.taken = false;
    return true;
  }
  return false;
}

}  // namespace torch_mtia
