// Block objects that describe no memory now.
#pragma once

#include <cstddef>
#include <deque>

#include "FreeBlocks.h"

namespace torch_mtia::core {

// Owns all Block objects that there are; none is moved or destroyed. What has been prepared is taken without fail, so
// that nothing throws between taking a block off its list and handing it out.
class UnusedBlocks {
 public:
  void prepare(size_t count) {
    while (count_ < count) {
      Block* block = &all_.emplace_back();
      LargeFreeBlocks::prepare(block);
      put(block);
    }
  }
  Block* take() noexcept {
    Block* block = first_;
    first_ = block->next_free;
    --count_;
    return block;
  }
  void put(Block* block) noexcept {
    block->next_free = first_;
    first_ = block;
    ++count_;
  }

 private:
  std::deque<Block> all_;
  Block* first_ = nullptr;  // linked by next_free
  size_t count_ = 0;
};

}  // namespace torch_mtia::core
