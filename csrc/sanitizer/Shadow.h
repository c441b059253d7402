// Shadow memory: cells that say what is known of bytes of the device's memory. No PyTorch.
//
// Note [Two granularities of shadow memory]
// Tensors are few and may be gigabytes: an ordered map of ranges has one cell for each. Programs of a kernel access
// single elements, and scattered: a page table finds their cells in constant time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_mtia::sanitizer {

// Disjoint ranges. A cell has `end`; its begin is the key. `Cell::clip(begin)` drops what no longer concerns the range
// from there to `end`, when a range is divided.
template <typename Cell>
class RangeShadow : private std::map<uint64_t, Cell> {
 public:
  using Map = std::map<uint64_t, Cell>;
  using Map::begin, Map::end, Map::size, Map::clear, Map::emplace_hint;
  using typename Map::iterator;

  // The first cell that ends after the address.
  auto find(uint64_t address) { return find(*this, address); }
  auto find(uint64_t address) const { return find(*this, address); }

  // Divides a cell that the address is inside of. Returns the first cell that begins at or after the address.
  iterator cut(uint64_t address) {
    const iterator cell = find(address);
    if (cell == end() || cell->first >= address) return cell;
    const iterator second = emplace_hint(std::next(cell), address, cell->second);
    cell->second.end = address;
    cell->second.clip(cell->first);
    second->second.clip(address);
    return second;
  }
  void erase(uint64_t begin, uint64_t end) {
    const iterator first = cut(begin);
    Map::erase(first, cut(end));
  }
  // In place of what is known of its range.
  void assign(uint64_t begin, Cell cell) {
    if (begin == cell.end) return;
    erase(begin, cell.end);
    Map::emplace(begin, std::move(cell));
  }

 private:
  template <typename Self>
  static auto find(Self& cells, uint64_t address) {
    const auto next = cells.upper_bound(address);
    return next != cells.begin() && std::prev(next)->second.end > address ? std::prev(next) : next;
  }
};

// Pages are divided into chunks, and these into parts, only where what is known differs.
template <typename Cell>
class ByteShadow {
 public:
  // Calls touch(cell, address) for the cells that make up the bytes from `begin` to `end`. It may change a cell, and
  // may be called for one twice.
  template <typename Touch>
  void touch(uint64_t begin, uint64_t end, Touch&& touch) {
    while (begin < end) {
      Page& page = page_at(begin);
      const uint64_t last = std::min(end, (begin / kPage + 1) * kPage);
      if (!is_done(page, last - begin == kPage, begin, touch)) {
        if (page.chunks == nullptr) split(page);
        touch_chunks(page, begin, last, touch);
      }
      begin = last;
    }
  }

  // Before several places here and there are touched, so that the processor waits for all of them at once.
  void fetch(uint64_t address) {
    const Page& page = page_at(address);
    if (page.chunks == nullptr) return;
    const Chunk& chunk = (*page.chunks)[address % kPage / kChunk];
    if (chunk.parts != nullptr) __builtin_prefetch(&chunk.parts[address % kChunk >> chunk.shift]);
  }

  // Whether is(cell) for one of the cells of these bytes.
  template <typename Is>
  bool any_of(uint64_t begin, uint64_t end, Is&& is) {
    while (begin < end) {
      const Page& page = page_at(begin);
      if (page.chunks == nullptr) {
        if (is(page.whole)) return true;
        begin = (begin / kPage + 1) * kPage;
        continue;
      }
      const Chunk& chunk = (*page.chunks)[begin % kPage / kChunk];
      if (is(chunk.parts == nullptr ? chunk.whole : chunk.parts[begin % kChunk >> chunk.shift])) return true;
      const uint64_t size = chunk.parts == nullptr ? kChunk : uint64_t{1} << chunk.shift;
      begin = (begin / size + 1) * size;
    }
    return false;
  }

  // Calls body(cell, begin, end) from low to high addresses.
  template <typename Body>
  void for_each(Body&& body) const {
    std::vector<uint64_t> numbers;
    for (const auto& [number, page] : pages_) numbers.push_back(number);
    std::sort(numbers.begin(), numbers.end());
    for (const uint64_t number : numbers) {
      const Page& page = pages_.at(number);
      uint64_t at = number * kPage;
      if (page.chunks == nullptr) body(page.whole, at, at + kPage);
      for (size_t index = 0; page.chunks != nullptr && index < kChunks; ++index, at += kChunk) {
        const Chunk& chunk = (*page.chunks)[index];
        if (chunk.parts == nullptr) body(chunk.whole, at, at + kChunk);
        const uint64_t size = uint64_t{1} << chunk.shift;
        for (uint64_t part = 0; chunk.parts != nullptr && part < kChunk / size; ++part) {
          body(chunk.parts[part], at + part * size, at + (part + 1) * size);
        }
      }
    }
  }

  void clear() {
    pages_.clear();
    std::fill(recent_.begin(), recent_.end(), std::pair<uint64_t, Page*>());
  }

 private:
  static constexpr uint64_t kChunk = 64;
  static constexpr uint64_t kPage = 4096;
  static constexpr size_t kChunks = kPage / kChunk;
  struct Chunk {
    Cell whole;
    uint32_t shift = 0;
    std::unique_ptr<Cell[]> parts;  // of 1 << shift bytes; null: `whole` holds for all of it
  };
  struct Page {
    Cell whole;
    std::unique_ptr<std::array<Chunk, kChunks>> chunks;  // null: `whole` holds for all of it
  };

  // Whether a page or a chunk need not be divided to touch all or some of it, and has been touched.
  template <typename Piece, typename Touch>
  static bool is_done(Piece& piece, bool is_all, uint64_t address, Touch&& touch) {
    if constexpr (requires { piece.chunks; }) {
      if (piece.chunks != nullptr) return false;
    } else {
      if (piece.parts != nullptr) return false;
    }
    if (is_all) {
      touch(piece.whole, address);
      return true;
    }
    Cell after = piece.whole;
    touch(after, address);
    return after == piece.whole;
  }

  template <typename Touch>
  static void touch_chunks(Page& page, uint64_t begin, uint64_t end, Touch&& touch) {
    while (begin < end) {
      Chunk& chunk = (*page.chunks)[begin % kPage / kChunk];
      const auto first = static_cast<uint32_t>(begin % kChunk);
      const auto last = static_cast<uint32_t>(std::min<uint64_t>(end - begin + first, kChunk));
      if (!is_done(chunk, last - first == kChunk, begin, touch)) {
        const auto shift = std::min<uint32_t>(static_cast<uint32_t>(std::countr_zero(first | last)), 5);
        if (chunk.parts == nullptr || chunk.shift > shift) split(chunk, shift);
        const uint64_t base = begin - first;
        for (uint32_t part = first >> chunk.shift; part < last >> chunk.shift; ++part) {
          touch(chunk.parts[part], base + (uint64_t{part} << chunk.shift));
        }
      }
      begin += last - first;
    }
  }

  Page& page_at(uint64_t address) {
    const uint64_t number = address / kPage;
    auto& [known, page] = recent_[number * 0x9E3779B97F4A7C15 >> (64 - kRecentBits)];
    if (page == nullptr || known != number) {
      known = number;
      page = &pages_[number];
    }
    return *page;
  }

  static void split(Page& page) {
    page.chunks = std::make_unique<std::array<Chunk, kChunks>>();
    for (Chunk& chunk : *page.chunks) chunk.whole = page.whole;
  }

  static void split(Chunk& chunk, uint32_t shift) {
    auto parts = std::make_unique<Cell[]>(kChunk >> shift);
    for (uint32_t part = 0; part < kChunk >> shift; ++part) {
      parts[part] = chunk.parts == nullptr ? chunk.whole : chunk.parts[(part << shift) >> chunk.shift];
    }
    chunk.parts = std::move(parts);
    chunk.shift = shift;
  }

  static constexpr int kRecentBits = 10;
  std::unordered_map<uint64_t, Page> pages_;
  std::vector<std::pair<uint64_t, Page*>> recent_ =  // a cache of pages, by a hash of their numbers
      std::vector<std::pair<uint64_t, Page*>>(1 << kRecentBits);
};

}  // namespace torch_mtia::sanitizer
