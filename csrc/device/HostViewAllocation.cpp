#include "HostViewAllocation.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <mutex>

#include "HostView.h"
#include "MTIACachingAllocator.h"

namespace torch_mtia {
namespace {

thread_local bool tls_active = false;

// From the host view of a block to the block.
class BlockTable {
 public:
  void insert(void* address, core::Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[address] = block;
  }
  // Null: the address is not ours.
  core::Block* take(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return nullptr;
    core::Block* block = found->second;
    blocks_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  ska::flat_hash_map<void*, core::Block*> blocks_;
};

BlockTable& block_table() {
  static auto* const table = new BlockTable();  // leaked: memory is freed until the process ends
  return *table;
}

c10::DeleterFnPtr base_deleter = nullptr;

// Frees memory of either kind, by its address alone.
void delete_by_address(void* address) {
  if (core::Block* block = block_table().take(address)) {
    tls_active ? MTIACachingAllocator::free_block_while_running(block) : MTIACachingAllocator::free_block(block);
  } else {
    base_deleter(address);
  }
}

class PassThroughAllocator final : public c10::Allocator {
 public:
  explicit PassThroughAllocator(c10::Allocator* base) : base_(base) { base_deleter = base->raw_deleter(); }

  c10::DataPtr allocate(size_t size) override {
    if (!tls_active || size == 0) return base_->allocate(size);
    core::Block* block = MTIACachingAllocator::allocate_block(size);
    void* address = HostView::to_host(reinterpret_cast<void*>(core::block_address(block)));
    block_table().insert(address, block);
    return {address, address, &delete_by_address, c10::Device(c10::DeviceType::CPU)};
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }
  c10::DeleterFnPtr raw_deleter() const override { return base_deleter == nullptr ? nullptr : &delete_by_address; }
  void copy_data(void* to, const void* from, size_t size) const override { base_->copy_data(to, from, size); }

 private:
  c10::Allocator* const base_;
};

bool install() {
  static auto* const allocator = new PassThroughAllocator(c10::GetCPUAllocator());  // leaked, as every allocator
  c10::SetCPUAllocator(allocator, /*priority=*/100);
  return true;
}

}  // namespace

HostViewAllocation::HostViewAllocation() : previous_(tls_active) {
  static const bool installed = install();
  tls_active = installed;
}

HostViewAllocation::~HostViewAllocation() {
  tls_active = previous_;
}

bool HostViewAllocation::owns(const c10::DataPtr& data) {
  return data.get_deleter() == &delete_by_address;
}

c10::DataPtr HostViewAllocation::adopt(c10::DataPtr&& data) {
  core::Block* block = block_table().take(data.release_context());
  TORCH_INTERNAL_ASSERT(block != nullptr);
  return MTIACachingAllocator::wrap_block(block);
}

}  // namespace torch_mtia
