// Random words from a counter, and the standard variates that they make. The words are those of Philox 4x32 with ten
// rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011).
//
// Note [Philox words]
// The generator turns a 128-bit counter and a 64-bit key, the seed, into four words of 32 bits. A draw reserves a range
// of counters from the device's generator and uses it in one of two ways, which differ in the upper half of the
// counter:
//
//   0          words in tiles: tile t of a draw is made of the 16 counters at offset / 4 + 16 t, and its word 16 l + j
//              is word l of counter j. That order needs no shuffles. For distributions with a fixed number of words per
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

#include "../device/MTIAGenerator.h"

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

// Standard variates from tiles of random words: a tile makes 64 floats or 32 doubles.
//
// The same bits on every machine: the loops use no fused multiplication and no function of the C library.
//
// The number of values that one tile makes.
template <typename T>
inline constexpr int64_t kTileValues = 64 * static_cast<int64_t>(sizeof(uint32_t)) / static_cast<int64_t>(sizeof(T));

// The 64-bit words of a tile: word e is made of the 32-bit words e and 32 + e.
inline uint64_t wide_word(const uint32_t* words, int64_t e) {
  return uint64_t{words[e]} << 32 | words[32 + e];
}

// Whether a word is at most `last`, for the 64 words of a tile.
void bernoulli_variates(const uint32_t* words, uint32_t last, bool* values);

// from + range * a number in [0, 1) of `bits` bits, at most `largest`. A float has up to 24 bits, a double 53.
void uniform_variates(const uint32_t* words, int bits, float from, float range, float largest, float* values);
void uniform_variates(const uint32_t* words, int bits, double from, double range, double largest, double* values);

// mean + std * a normal variate, by Box and Muller's method.
void normal_variates(const uint32_t* words, float mean, float std, float* values);
void normal_variates(const uint32_t* words, double mean, double std, double* values);

// Exponential with rate 1, never 0: at least 2^-32 and 2^-54.
void exponential_variates(const uint32_t* words, float* values);
void exponential_variates(const uint32_t* words, double* values);

// Cauchy with median 0 and scale 1, always finite.
void cauchy_variates(const uint32_t* words, float* values);
void cauchy_variates(const uint32_t* words, double* values);

}  // namespace torch_mtia
