#include "Pools.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace torch_mtia::core {

MemoryPool& Pools::find(PoolId id) {
  if (id == PoolId{0, 0}) return default_;
  auto& pool = private_[id];
  if (pool == nullptr) {
    pool = std::make_unique<MemoryPool>();
    pool->id = id;
  }
  return *pool;
}

FreeBlocks& Pools::find_free_blocks(MemoryPool& pool, Stream* stream) {
  auto& found = pool.free_blocks[stream];
  if (found == nullptr) found = std::make_unique<FreeBlocks>();
  if (&pool == &default_) {
    recent_stream_ = stream;
    recent_ = found.get();
  }
  return *found;
}

void Pools::release(PoolId id) {
  const auto found = private_.find(id);
  if (found == private_.end() || found->second->users == 0) {
    throw std::invalid_argument("the memory pool (" + std::to_string(id.first) + ", " + std::to_string(id.second) +
                                ") is not in use");
  }
  --found->second->users;
  discard_unused();
}

void Pools::use_in(PoolId id, Stream* stream) {
  auto& streams = find(id).used_in;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

void Pools::discard_unused() noexcept {
  std::erase_if(private_, [this](const auto& entry) {
    const MemoryPool* pool = entry.second.get();
    const auto leads_here = [pool](const auto& direction) { return direction.second == pool; };
    return pool->users == 0 && pool->num_segments == 0 && std::none_of(directed_.begin(), directed_.end(), leads_here);
  });
}

}  // namespace torch_mtia::core
