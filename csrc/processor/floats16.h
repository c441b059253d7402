// Conversions between float and the two formats of 16 bits. They have no branches, so that loops over them become
// vectors.
#pragma once

#include <bit>
#include <cstdint>

namespace torch_mtia {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

[[gnu::always_inline]] inline float widened(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] inline float widened(Float16 value) {
  const uint32_t magnitude = (value.bits & 0x7fffU) << 13;
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  // The exponent's bias grows by 112. Subnormal numbers are subtracted from what their first bit would stand for.
  const float normal = std::bit_cast<float>(magnitude + (112U << 23));
  const float subnormal = std::bit_cast<float>(magnitude + (113U << 23)) - std::bit_cast<float>(113U << 23);
  const float special = std::bit_cast<float>(magnitude | 0x7f800000U);
  const float finite = magnitude < (1U << 23) ? subnormal : normal;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude < (31U << 23) ? finite : special) | sign);
}

// To nearest, ties to even.
[[gnu::always_inline]] inline void narrow(float value, BFloat16& result) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  result.bits = static_cast<uint16_t>(is_nan ? 0x7fc0U : rounded);
}

[[gnu::always_inline]] inline void narrow(float value, Float16& result) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Adding 1/2 moves the last bit of a subnormal number of 16 bits to the last of 32: the addition rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126U << 23);
  const uint32_t finite = magnitude < (113U << 23) ? subnormal : normal;
  const uint32_t large = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;  // NaN, infinity
  result.bits = static_cast<uint16_t>(sign | (magnitude < 0x477ff000U ? finite : large));
}

}  // namespace torch_mtia
