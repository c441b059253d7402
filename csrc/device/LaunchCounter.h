// Counts what the programs of one launch access. See Note [Watched kernels] in mtia_runtime.h. No PyTorch.
//
// A kernel that is compiled to be counted also has a site that neither reads nor writes for each of its blocks, and
// says so when it enters the block; `argument_offset` is the number of the block.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../runtime/mtia_runtime.h"

namespace torch_mtia {

// The watch of a launch that runs on one thread, and is synchronized before anything is read here.
class LaunchCounter : public mtia_kernel_watch {
 public:
  struct Site {
    const mtia_site* source = nullptr;  // of the kernel's image
    uint64_t elements = 0;              // accessed, with repetitions
  };
  // Bytes of memory, each counted once.
  struct Bytes {
    uint64_t read = 0;  // before the launch wrote them itself
    uint64_t written = 0;
  };

  LaunchCounter() : mtia_kernel_watch{&access} {}

  uint64_t programs() const { return programs_; }
  const std::map<uint32_t, Site>& sites() const { return sites_; }
  // How often each block of the kernel was entered, by its number.
  const std::map<int64_t, uint64_t>& blocks() const { return blocks_; }

  Bytes bytes() const {
    Bytes total;
    const auto count = [](const Bits& bits) {
      uint64_t set = 0;
      for (const uint64_t word : bits) set += static_cast<uint64_t>(std::popcount(word));
      return set;
    };
    for (const auto& [number, page] : pages_) {
      total.read += count(page->read);
      total.written += count(page->written);
    }
    return total;
  }

 private:
  static constexpr uint64_t kPageBytes = 4096;
  static constexpr uint64_t kWordBits = 64;
  using Bits = std::array<uint64_t, kPageBytes / kWordBits>;  // a bit for each byte
  struct Page {
    Bits read{}, written{};
  };

  static uint64_t access(const mtia_kernel_watch* watch, const mtia_kernel_context* /*context*/, const mtia_site* site,
                         int32_t /*x*/, int32_t /*y*/, int32_t /*z*/, uint64_t address, int64_t stride,
                         const uint64_t* addresses, uint64_t lanes, const void* /*values*/) {
    auto& self = *const_cast<LaunchCounter*>(static_cast<const LaunchCounter*>(watch));  // NOLINT: it is no constant
    if (site == nullptr) {
      ++self.programs_;
    } else if (site->kind == 0) {
      ++self.blocks_[site->argument_offset];
    } else {
      self.add(*site, address, stride, addresses, lanes);
    }
    return lanes;
  }

  void add(const mtia_site& source, uint64_t address, int64_t stride, const uint64_t* addresses, uint64_t lanes) {
    Site& site = sites_[source.number];
    site.source = &source;
    site.elements += static_cast<uint64_t>(std::popcount(lanes));
    const bool is_dense = addresses == nullptr && stride == static_cast<int64_t>(source.size);
    while (lanes != 0) {
      const auto first = static_cast<uint32_t>(std::countr_zero(lanes));
      const uint32_t count = is_dense ? static_cast<uint32_t>(std::countr_one(lanes >> first)) : 1;
      const uint64_t begin =
          addresses != nullptr ? addresses[first] : address + static_cast<uint64_t>(int64_t{first} * stride);
      touch(begin, begin + uint64_t{count} * source.size, source.kind);
      lanes &= first + count == kWordBits ? 0 : ~uint64_t{0} << (first + count);
    }
  }

  void touch(uint64_t begin, uint64_t end, uint32_t kind) {
    while (begin < end) {
      Page& page = page_at(begin / kPageBytes);
      const uint64_t bit = begin % kWordBits;
      const uint64_t count = std::min(end - begin, kWordBits - bit);
      const uint64_t mask = (count == kWordBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
      const uint64_t word = begin % kPageBytes / kWordBits;
      if ((kind & MTIA_SITE_READS) != 0) page.read[word] |= mask & ~page.written[word];
      if ((kind & MTIA_SITE_WRITES) != 0) page.written[word] |= mask;
      begin += count;
    }
  }

  Page& page_at(uint64_t number) {
    if (last_ == nullptr || number != last_number_) {
      std::unique_ptr<Page>& page = pages_[number];
      if (page == nullptr) page = std::make_unique<Page>();
      last_ = page.get();
      last_number_ = number;
    }
    return *last_;
  }

  uint64_t programs_ = 0;
  std::map<uint32_t, Site> sites_;
  std::map<int64_t, uint64_t> blocks_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  uint64_t last_number_ = 0;
  Page* last_ = nullptr;
};

}  // namespace torch_mtia
