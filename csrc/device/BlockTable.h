// From addresses to blocks, for memory that is freed by its address alone: that of lazy clones.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <mutex>

#include "../core/BlockAllocator.h"
#include "../runtime/forks.h"

namespace torch_mtia {

// Lives as long as the process.
class BlockTable {
 public:
  BlockTable() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  void insert(void* address, core::Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[address] = {block};
    size_ = blocks_.size();
  }
  // What the memory is shared through, c10's object; null: it has one owner.
  void set_sharing(void* address, const void* sharing) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found != blocks_.end()) found->second.sharing = sharing;
  }
  // Calls apply(block, sharing) for memory that is shared, or was.
  template <typename Apply>
  void for_each_shared(Apply apply) {
    if (size_.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [address, entry] : blocks_) {
      if (entry.sharing != nullptr) apply(entry.block, entry.sharing);
    }
  }
  // Null: the address is not in the table.
  core::Block* find(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    return found != blocks_.end() ? found->second.block : nullptr;
  }
  // The same, and removes it.
  core::Block* take(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return nullptr;
    core::Block* block = found->second.block;
    blocks_.erase(found);
    size_ = blocks_.size();
    return block;
  }

 private:
  struct Entry {
    core::Block* block;
    const void* sharing = nullptr;
  };

  std::mutex mutex_;
  ska::flat_hash_map<void*, Entry> blocks_;
  std::atomic<size_t> size_{0};
};

}  // namespace torch_mtia
