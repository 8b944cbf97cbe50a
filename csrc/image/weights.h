// The weights of a resize as whole numbers, for the two kinds of arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace ddltrain::image {

// `exact` is Pillow's arithmetic: weights of 22 bits, samples rounded to whole levels after each axis.
// `fast` has weights of 14 (rows) and 15 bits (columns), and keeps samples times 128 until colours are
// converted.
enum class Precision { fast, exact };

// A weight of 22 bits is split in two, so that it can be multiplied in 16 bits.
constexpr int exact_bits = 22, low_bits = 11, row_bits = 14, column_bits = 15;
constexpr int fraction_bits = 7;  // of `fast` samples

// Samples that are filtered together: rows of results are padded to a multiple of this.
constexpr int lanes = 16;
constexpr int padded(int count) { return (count + lanes - 1) / lanes * lanes; }

// Whole numbers in proportion to `weights`, with the sum 1 << bits (one less where that would overflow).
inline void set_fast(std::span<const double> weights, int bits, int16_t* result) {
  const int one = 1 << bits;
  int rest = one;
  size_t largest = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    const int weight = static_cast<int>(weights[k] * one + 0.5);
    result[k] = static_cast<int16_t>(std::min(weight, INT16_MAX));
    rest -= weight;
    if (weights[k] > weights[largest]) largest = k;
  }
  result[largest] = static_cast<int16_t>(std::min(result[largest] + rest, INT16_MAX));
}

// As Pillow rounds them.
inline void set_exact(std::span<const double> weights, int16_t* high, int16_t* low) {
  for (size_t k = 0; k < weights.size(); ++k) {
    const int weight = static_cast<int>(0.5 + weights[k] * (1 << exact_bits));
    high[k] = static_cast<int16_t>(weight >> low_bits);
    low[k] = static_cast<int16_t>(weight & ((1 << low_bits) - 1));
  }
}

}  // namespace ddltrain::image
