// Random words from a counter: Philox 4x32 with ten rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2,
// 3", 2011).
//
// Note [Philox words]
// The generator turns a 128-bit counter and a 64-bit key, the seed, into four words of 32 bits. A draw reserves a range
// of counters from the device's generator and uses it in one of two ways, told apart by the upper half of the counter:
//
//   0          words in tiles: tile t of a draw is made of the 16 counters at offset / 4 + 16 t, and its word 16 l + j
//   is
//              word l of counter j. That order needs no shuffles. For distributions with a fixed number of words per
//              element.
//   1, 2, ...  words of one element: element i owns the lower half offset / 4 + i, and reads as many words as it likes.
//              For samplers that reject.
//
// What an element gets depends on seed, offset and the element's index in logical (row-major) order, so neither on the
// number of threads nor on strides nor on the instructions that the machine has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../device/PhiloxState.h"

namespace torch_mtia {

inline constexpr int64_t kTileWords = 64;

// The words of `num_tiles` tiles.
void philox_tiles(const PhiloxState& state, uint64_t first_tile, int64_t num_tiles, uint32_t* words);

// The words of one element, one after the other.
class PhiloxEngine {
 public:
  PhiloxEngine(const PhiloxState& state, uint64_t element) : seed_(state.seed), counter_(state.offset / 4 + element) {}

  uint32_t word() {
    if (next_ == block_.size()) refill();
    return block_[next_++];
  }

  // In (0, 1).
  double uniform() {
    const uint64_t high = word();
    return (static_cast<double>((high << 32 | word()) >> 12) + 0.5) * 0x1p-52;
  }

  double normal();

 private:
  void refill();

  uint64_t seed_;
  uint64_t counter_;
  uint64_t num_blocks_ = 0;
  std::array<uint32_t, 4> block_{};
  size_t next_ = 4;
};

}  // namespace torch_mtia
