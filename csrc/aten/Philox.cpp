#include "Philox.h"

#include <cmath>
#include <numbers>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "../processor/attributes.h"

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

// Standard variates. A fused multiplication would make the bits depend on the machine; the others are what
// vectorization needs. Functions of the standard library are compiled without these options, so they are not inlined
// here: hence the compiler's own.
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=off", "no-trapping-math")

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace torch_mtia {
namespace {

constexpr double kLn2 = std::numbers::ln2;
constexpr double kHalfPi = std::numbers::pi / 2;

// Bit patterns.
constexpr auto kFloatSqrtHalf = __builtin_bit_cast(int32_t, std::numbers::sqrt2_v<float> / 2);
constexpr auto kDoubleSqrtHalf = __builtin_bit_cast(uint64_t, std::numbers::sqrt2 / 2);
constexpr auto kOne = __builtin_bit_cast(uint64_t, 1.0);
constexpr auto kTwoTo52 = __builtin_bit_cast(uint64_t, 0x1p52);

// As many terms of a series as leave an error below half a unit in the last place.
template <typename T>
constexpr int kLogTerms = sizeof(T) == sizeof(float) ? 5 : 11;
template <typename T>
constexpr int kSinTerms = sizeof(T) == sizeof(float) ? 5 : 8;
template <typename T>
constexpr int kCosTerms = sizeof(T) == sizeof(float) ? 6 : 9;

template <typename T, int Terms>
struct Coefficients {
  T of[Terms];
};

// atanh(s) = s * series(s^2) / 2
template <typename T>
constexpr auto kLogSeries = [] {
  Coefficients<T, kLogTerms<T>> series{};
  for (int k = 0; k < kLogTerms<T>; ++k) series.of[k] = static_cast<T>(2.0 / (2 * k + 1));
  return series;
}();

// x^first / first! - x^(first + 2) / (first + 2)! + ..., over x^first
template <typename T, int Terms, int First>
constexpr auto kAlternatingSeries = [] {
  Coefficients<T, Terms> series{};
  double term = 1;
  for (int k = 0; k < Terms; ++k) {
    series.of[k] = static_cast<T>(term);
    term /= -(2.0 * k + First + 1) * (2.0 * k + First + 2);
  }
  return series;
}();
template <typename T>
constexpr auto kSinSeries = kAlternatingSeries<T, kSinTerms<T>, 1>;
template <typename T>
constexpr auto kCosSeries = kAlternatingSeries<T, kCosTerms<T>, 0>;

template <typename T, int Terms>
ALWAYS_INLINE T evaluate(const Coefficients<T, Terms>& series, T z) {
  T sum = series.of[Terms - 1];
#pragma GCC unroll 16
  for (int k = Terms - 2; k >= 0; --k) sum = sum * z + series.of[k];
  return sum;
}

// ln(2^exponent * mantissa), mantissa in [sqrt(1/2), sqrt(2)): the series of atanh.
template <typename T>
ALWAYS_INLINE T log_of_parts(T exponent, T mantissa) {
  const T s = (mantissa - 1) / (mantissa + 1);
  return exponent * static_cast<T>(kLn2) + s * evaluate(kLogSeries<T>, s * s);
}

// Natural logarithms of positive normal numbers.
ALWAYS_INLINE float log_positive(float x) {
  const auto bits = __builtin_bit_cast(int32_t, x);
  const int32_t exponent = (bits - kFloatSqrtHalf) >> 23;
  return log_of_parts(static_cast<float>(exponent), __builtin_bit_cast(float, bits - (exponent << 23)));
}

ALWAYS_INLINE double log_positive(double x) {
  constexpr uint64_t kBias = 1023;
  const auto bits = __builtin_bit_cast(uint64_t, x);
  const uint64_t biased = (bits - kDoubleSqrtHalf + (kBias << 52)) >> 52;
  const double exponent = __builtin_bit_cast(double, kTwoTo52 | biased) - 0x1p52 - kBias;
  return log_of_parts(exponent, __builtin_bit_cast(double, bits - ((biased - kBias) << 52)));
}

// A word as a number in (0, 1]; the float rounds to 1 for the highest words.
ALWAYS_INLINE float open_unit(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 1)) * 0x1p-31F + 0x1p-32F;
}

ALWAYS_INLINE double open_unit(uint64_t word) {
  return __builtin_bit_cast(double, kOne | word >> 12) - 1 + 0x1p-53;
}

template <typename T>
struct SinCos {
  T sin;
  T cos;
};

// Of an angle given as quadrant (two bits count) and the rest in quarter turns, from -1/2 to 1/2.
template <typename T>
ALWAYS_INLINE SinCos<T> sin_cos_of_parts(bool odd_quadrant, bool negative_sin, bool negative_cos, T rest) {
  const T angle = rest * static_cast<T>(kHalfPi);
  const T z = angle * angle;
  const T sin = angle * evaluate(kSinSeries<T>, z);
  const T cos = evaluate(kCosSeries<T>, z);
  const T y = odd_quadrant ? cos : sin;
  const T x = odd_quadrant ? sin : cos;
  return {negative_sin ? -y : y, negative_cos ? -x : x};
}

// Sine and cosine, neither of them 0, of a word as a fraction of a turn.
ALWAYS_INLINE SinCos<float> sin_cos(uint32_t word) {
  const uint32_t quadrant = (word + (1U << 29)) >> 30;
  const float rest = (static_cast<float>(static_cast<int32_t>(word << 2)) + 0.5F) * 0x1p-32F;
  return sin_cos_of_parts(quadrant & 1, quadrant & 2, (quadrant + 1) & 2, rest);
}

ALWAYS_INLINE SinCos<double> sin_cos(uint64_t word) {
  const uint64_t turned = word + (uint64_t{1} << 61);
  const uint64_t quadrant = turned >> 62;
  const double rest = __builtin_bit_cast(double, kOne | turned << 2 >> 12) - 1.5 + 0x1p-53;
  return sin_cos_of_parts(quadrant & 1, quadrant & 2, (quadrant + 1) & 2, rest);
}

ALWAYS_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}

ALWAYS_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}

// Box and Muller: one word for the radius, one for the angle, two variates.
template <typename T, typename Word>
ALWAYS_INLINE void normal_pair(Word radius_word, Word angle_word, T mean, T std, T& first, T& second) {
  const T radius = square_root(-2 * log_positive(open_unit(radius_word)));
  const SinCos<T> direction = sin_cos(angle_word);
  first = mean + std * (radius * direction.cos);
  second = mean + std * (radius * direction.sin);
}

template <typename T, typename Word>
ALWAYS_INLINE T exponential(Word word, T least) {
  const T value = -log_positive(open_unit(word));
  return value < least ? least : value;
}

}  // namespace

VECTORIZED void bernoulli_variates(const uint32_t* __restrict words, uint32_t last, bool* __restrict values) {
  for (int j = 0; j < 64; ++j) values[j] = words[j] <= last;
}

VECTORIZED void uniform_variates(const uint32_t* __restrict words, int bits, float from, float range, float largest,
                                 float* __restrict values) {
  const float unit = 1.0F / static_cast<float>(1 << bits);
  for (int j = 0; j < 64; ++j) {
    const float value = from + static_cast<float>(static_cast<int32_t>(words[j] >> (32 - bits))) * unit * range;
    values[j] = value > largest ? largest : value;
  }
}

VECTORIZED void uniform_variates(const uint32_t* __restrict words, int bits, double from, double range, double largest,
                                 double* __restrict values) {
  const double unit = 1.0 / static_cast<double>(int64_t{1} << bits);
  for (int j = 0; j < 32; ++j) {
    const auto number = static_cast<int64_t>(wide_word(words, j) >> (64 - bits));
    const double value = from + static_cast<double>(number) * unit * range;
    values[j] = value > largest ? largest : value;
  }
}

VECTORIZED void normal_variates(const uint32_t* __restrict words, float mean, float std, float* __restrict values) {
  for (int half = 0; half < 64; half += 32) {
    for (int j = half; j < half + 16; ++j) {
      normal_pair(words[j], words[j + 16], mean, std, values[j], values[j + 16]);
    }
  }
}

VECTORIZED void normal_variates(const uint32_t* __restrict words, double mean, double std, double* __restrict values) {
  for (int j = 0; j < 16; ++j) {
    normal_pair(wide_word(words, j), wide_word(words, j + 16), mean, std, values[j], values[j + 16]);
  }
}

VECTORIZED void exponential_variates(const uint32_t* __restrict words, float* __restrict values) {
  for (int j = 0; j < 64; ++j) values[j] = exponential(words[j], 0x1p-32F);
}

VECTORIZED void exponential_variates(const uint32_t* __restrict words, double* __restrict values) {
  for (int j = 0; j < 32; ++j) values[j] = exponential(wide_word(words, j), 0x1p-54);
}

// The tangent of an angle uniform over the turn is distributed as over half of it.
VECTORIZED void cauchy_variates(const uint32_t* __restrict words, float* __restrict values) {
  for (int j = 0; j < 64; ++j) {
    const auto direction = sin_cos(words[j]);
    values[j] = direction.sin / direction.cos;
  }
}

VECTORIZED void cauchy_variates(const uint32_t* __restrict words, double* __restrict values) {
  for (int j = 0; j < 32; ++j) {
    const auto direction = sin_cos(wide_word(words, j));
    values[j] = direction.sin / direction.cos;
  }
}

}  // namespace torch_mtia

#pragma GCC pop_options
