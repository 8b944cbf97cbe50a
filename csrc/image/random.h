// Random numbers without state: Philox4x32-10 (Salmon et al. 2011), a function of a key and a counter.
#pragma once

#include <array>
#include <cstdint>

namespace ddltrain::image {

// Four words of 32 random bits: draw number `draw` for one record in one epoch.
inline std::array<uint32_t, 4> random_words(uint32_t seed, uint32_t epoch, uint64_t record, uint32_t draw) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(record), static_cast<uint32_t>(record >> 32), draw,
                                     0};
  std::array<uint32_t, 2> key = {seed, epoch};
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t{0xD2511F53} * counter[0], odd = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// From `low` up to but not including `high`.
inline double uniform(uint32_t word, double low, double high) {
  return low + (high - low) * (word * 0x1p-32);
}

// A whole number from 0 to `count` - 1.
inline int below(uint32_t word, int count) {
  return static_cast<int>((uint64_t{word} * static_cast<uint64_t>(count)) >> 32);
}

}  // namespace ddltrain::image
