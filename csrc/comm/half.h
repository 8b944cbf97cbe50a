// The two 16-bit floating-point formats, in integer arithmetic that compilers turn into vector code, so that
// every machine gets the same bits. Rounding is to nearest, ties to even; NaNs stay NaNs.
#pragma once

#include <bit>
#include <cstdint>

namespace ddltrain {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

[[gnu::always_inline]] inline float widen(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] inline float widen(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  // Moves the exponent's bias from 15 to 127, and makes subnormals normal, by one exact multiplication.
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;  // infinity or NaN
  return std::bit_cast<float>(sign | scaled | special);
}

[[gnu::always_inline]] inline BFloat16 narrow(float value, BFloat16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
}

[[gnu::always_inline]] inline Float16 narrow(float value, Float16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Results below 2^-14 have a fixed last place of 2^-24: adding 0.5 makes the addition itself round there.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t usual = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = magnitude < 0x38800000 ? small : usual;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return {static_cast<uint16_t>(sign | (magnitude >= 0x47800000 ? special : finite))};
}

// The largest finite values.
constexpr float largest(Float16) { return 65504.0f; }
constexpr float largest(BFloat16) { return 0x1.fep127f; }

// For a value on its way: one that is finite stays so, at the largest if it is beyond.
template <typename T>
[[gnu::always_inline]] inline T narrow_for_wire(float value) {
  const float upper = value > largest(T{}) ? largest(T{}) : value;
  const float bounded = upper < -largest(T{}) ? -largest(T{}) : upper;
  const bool is_infinite = (std::bit_cast<uint32_t>(value) & 0x7fffffff) == 0x7f800000;
  return narrow(is_infinite ? value : bounded, T{});
}

}  // namespace ddltrain
