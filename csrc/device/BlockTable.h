// From addresses to blocks, for memory that is freed by its address alone.
#pragma once

#include <c10/util/flat_hash_map.h>

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
    blocks_[address] = block;
  }
  // Null: the address is not in the table.
  core::Block* find(void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    return found != blocks_.end() ? found->second : nullptr;
  }
  // The same, and removes it.
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

}  // namespace torch_mtia
