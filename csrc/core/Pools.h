// Which memory serves which stream: see Note [Private pools] in BlockAllocator.h.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "FreeBlocks.h"

namespace torch_mtia::core {

struct MemoryPool {
  PoolId id{0, 0};
  int users = 0;  // of a private pool
  size_t num_segments = 0;
  std::vector<Stream*> used_in;  // by Pools::use_in
  std::unordered_map<Stream*, std::unique_ptr<FreeBlocks>> free_blocks;

  bool is_default() const { return id == PoolId{0, 0}; }
  bool may_return_segments() const { return is_default() || users == 0; }
};

// The pools, and the streams that are directed to private ones. A private pool exists while it has users or segments,
// or a stream is directed to it.
class Pools {
 public:
  MemoryPool& of(Stream* stream) {
    if (directed_.empty()) [[likely]]
      return default_;
    const auto found = directed_.find(stream);
    return found == directed_.end() ? default_ : *found->second;
  }

  FreeBlocks& free_blocks(MemoryPool& pool, Stream* stream) {
    return &pool == &default_ && stream == recent_stream_ ? *recent_ : find_free_blocks(pool, stream);
  }
  FreeBlocks& free_blocks(const Block* block) { return free_blocks(*block->pool, block->stream); }
  // Calls apply(free_blocks) for those of all pools and streams.
  template <typename Apply>
  void for_each_free_blocks(Apply apply) {
    for (const auto& [stream, free] : default_.free_blocks) apply(*free);
    for (const auto& [id, pool] : private_) {
      for (const auto& [stream, free] : pool->free_blocks) apply(*free);
    }
  }

  void use(PoolId id) { ++find(id).users; }
  void release(PoolId id);  // throws std::invalid_argument if nobody uses it
  void use_in(PoolId id, Stream* stream);
  void direct(Stream* stream, PoolId id) { directed_[stream] = &find(id); }
  void direct_to_default(Stream* stream) { directed_.erase(stream); }
  // To be called when a pool may have lost its last segment.
  void discard_unused() noexcept;

 private:
  MemoryPool& find(PoolId id);  // makes it, if need be
  FreeBlocks& find_free_blocks(MemoryPool& pool, Stream* stream);

  MemoryPool default_;
  std::map<PoolId, std::unique_ptr<MemoryPool>> private_;
  std::unordered_map<Stream*, MemoryPool*> directed_;
  Stream* recent_stream_ = nullptr;  // and its free blocks in the default pool, of which nearly every call is
  FreeBlocks* recent_ = nullptr;
};

}  // namespace torch_mtia::core
