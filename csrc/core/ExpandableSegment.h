// A segment that is addresses first and gets memory where it is needed: see Note [Expandable segments] in
// BlockAllocator.h.
#pragma once

#include <cstddef>

#include "Block.h"

namespace torch_mtia::core {

class Segments;

// That of one stream in one pool. Its blocks are those of `segments`; two without memory are never neighbours.
class ExpandableSegment {
 public:
  // A free block of at least `size` bytes, in no list. Null: there is no place for it, or the device is full.
  Block* take(Segments& segments, size_t size, MemoryPool& pool, Stream* stream, const TraceContext& context);

  // Of a free block that is in no list, the whole pages, as a block of their own in no list; the rest is free. Needs
  // two unused blocks.
  static Block* detach_pages(Segments& segments, Block* block) noexcept;
  // The driver has taken the memory of a block from detach_pages.
  void unmapped(Segments& segments, Block* block) noexcept;

 private:
  Block* reserve(Segments& segments, MemoryPool& pool, Stream* stream);
  static Block* map_front(Segments& segments, Block* block, size_t size, const TraceContext& context);
  void release_if_empty(Segments& segments, Block* block) noexcept;

  Block* first_ = nullptr;  // null: it has no addresses
};

}  // namespace torch_mtia::core
