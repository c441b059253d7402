#include "Philox.h"

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

namespace torch_mtia {
namespace {

constexpr uint64_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57};
constexpr uint32_t kKeySteps[2] = {0x9E3779B9, 0xBB67AE85};
constexpr int kRounds = 10;
constexpr int kTileCounters = 16;

using Words2 = uint64_t __attribute__((vector_size(16)));
using Words4 = uint64_t __attribute__((vector_size(32)));
using Words8 = uint64_t __attribute__((vector_size(64)));
using Narrow2 = uint32_t __attribute__((vector_size(8)));
using Narrow4 = uint32_t __attribute__((vector_size(16)));
using Narrow8 = uint32_t __attribute__((vector_size(32)));

// The tiles with N counters at a time. A word is the lower half of a 64-bit lane, which is what the one instruction
// that differs, the multiplication of lower halves, reads; the upper halves hold whatever came out. A macro, because
// neither templates nor inlining pass the target on. Vectorized by hand, because g++ 12 multiplies whole lanes instead.
#define DEFINE_PHILOX_TILES(NAME, TARGET, N, MULTIPLY)                                                               \
  TARGET void NAME(const PhiloxState& state, uint64_t first_tile, int64_t num_tiles, uint32_t* words) {              \
    const Words##N first_multiplier = Words##N{} + kMultipliers[0];                                                  \
    const Words##N second_multiplier = Words##N{} + kMultipliers[1];                                                 \
    Words##N lane{};                                                                                                 \
    for (int j = 0; j < N; ++j) lane[j] = j;                                                                         \
    uint64_t counter = state.offset / 4 + first_tile * kTileCounters;                                                \
    for (int64_t tile = 0; tile < num_tiles; ++tile, words += kTileWords) {                                          \
      for (int j = 0; j < kTileCounters; j += N, counter += N) {                                                     \
        Words##N c0 = lane + counter, c1 = c0 >> 32, c2{}, c3{};                                                     \
        auto k0 = static_cast<uint32_t>(state.seed);                                                                 \
        auto k1 = static_cast<uint32_t>(state.seed >> 32);                                                           \
        _Pragma("GCC unroll 10") for (int round = 0; round < kRounds; ++round) {                                     \
          const auto p0 = (Words##N)MULTIPLY(c0, first_multiplier);                                                  \
          const auto p1 = (Words##N)MULTIPLY(c2, second_multiplier);                                                 \
          c0 = (p1 >> 32) ^ c1 ^ uint64_t{k0};                                                                       \
          c2 = (p0 >> 32) ^ c3 ^ uint64_t{k1};                                                                       \
          c1 = p1;                                                                                                   \
          c3 = p0;                                                                                                   \
          k0 += kKeySteps[0];                                                                                        \
          k1 += kKeySteps[1];                                                                                        \
        }                                                                                                            \
        const Narrow##N block[4] = {__builtin_convertvector(c0, Narrow##N), __builtin_convertvector(c1, Narrow##N),  \
                                    __builtin_convertvector(c2, Narrow##N), __builtin_convertvector(c3, Narrow##N)}; \
        for (int l = 0; l < 4; ++l) __builtin_memcpy(words + l * kTileCounters + j, &block[l], sizeof(block[l]));    \
      }                                                                                                              \
    }                                                                                                                \
  }
#if defined(__x86_64__)
#define MULTIPLY_SSE2(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#define MULTIPLY_AVX2(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
// Not _mm512_mul_epu32, at which g++ 12 warns of a variable in its own header.
#define MULTIPLY_AVX512(a, b) _mm512_maskz_mul_epu32(0xff, (__m512i)(a), (__m512i)(b))

DEFINE_PHILOX_TILES(tiles_sse2, [[gnu::target("sse2")]], 2, MULTIPLY_SSE2)
DEFINE_PHILOX_TILES(tiles_avx2, [[gnu::target("avx2")]], 4, MULTIPLY_AVX2)
DEFINE_PHILOX_TILES(tiles_avx512, [[gnu::target("avx512f,avx512vl")]], 8, MULTIPLY_AVX512)

auto* choose_tiles() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return &tiles_avx512;
  return __builtin_cpu_supports("avx2") ? &tiles_avx2 : &tiles_sse2;
}
#else
#define MULTIPLY_NEON(a, b) vmull_u32(vmovn_u64((uint64x2_t)(a)), vmovn_u64((uint64x2_t)(b)))

DEFINE_PHILOX_TILES(tiles_neon, , 2, MULTIPLY_NEON)

auto* choose_tiles() {
  return &tiles_neon;
}
#endif

}  // namespace

void philox_tiles(const PhiloxState& state, uint64_t first_tile, int64_t num_tiles, uint32_t* words) {
  static auto* const tiles = choose_tiles();
  tiles(state, first_tile, num_tiles, words);
}

void PhiloxEngine::refill() {
  ++num_blocks_;
  uint64_t c[4] = {static_cast<uint32_t>(counter_), counter_ >> 32, static_cast<uint32_t>(num_blocks_),
                   num_blocks_ >> 32};
  auto k0 = static_cast<uint32_t>(seed_);
  auto k1 = static_cast<uint32_t>(seed_ >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = kMultipliers[0] * c[0];
    const uint64_t p1 = kMultipliers[1] * c[2];
    c[0] = (p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = (p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(p0);
    k0 += kKeySteps[0];
    k1 += kKeySteps[1];
  }
  for (int l = 0; l < 4; ++l) block_[l] = static_cast<uint32_t>(c[l]);
  next_ = 0;
}

double PhiloxEngine::normal() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * M_PI * uniform());
}

}  // namespace torch_mtia
