// Standard variates from tiles of random words (Philox.h): a tile makes 64 floats or 32 doubles.
//
// The same bits on every machine: the loops use no fused multiplication and no function of the C library.
#pragma once

#include <cstdint>

namespace torch_mtia {

// Values that one tile makes.
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
