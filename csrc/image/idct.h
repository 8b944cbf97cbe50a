// The inverse DCT of one block: libjpeg's "islow" (Loeffler, Ligtenberg and Moschytz 1989, in integers of 13
// bits), to the bit.
#pragma once

#include <array>

#include "grid.h"

namespace ddltrain::image {

// Where a coefficient stands in a block that is to be transformed: rows 0 and 4, 2 and 6, 1 and 5, 3 and 7
// are interleaved, since one instruction multiplies such pairs and adds the products.
constexpr int slot_of(int row, int column) {
  constexpr int pair_of_row[4] = {0, 2, 1, 3};
  return pair_of_row[row % 4] * 16 + column * 2 + row / 4;
}

// The natural place (row * 8 + column) of each coefficient in zigzag order.
constexpr std::array<uint8_t, block_size> make_zigzag() {
  std::array<uint8_t, block_size> order = {};
  int row = 0, column = 0;
  for (uint8_t& place : order) {
    place = static_cast<uint8_t>(row * block_side + column);
    const bool is_rising = (row + column) % 2 == 0;
    int& ahead = is_rising ? column : row;
    int& back = is_rising ? row : column;
    if (ahead == block_side - 1) {
      ++back;
    } else {
      ++ahead;
      if (back > 0) --back;
    }
  }
  return order;
}

constexpr std::array<uint8_t, block_size> zigzag = make_zigzag();

constexpr int slot_of_zigzag(int k) {
  const int place = zigzag[static_cast<size_t>(k)];
  return slot_of(place / block_side, place % block_side);
}

// coefficients and steps: 64 each by slot, 32-byte aligned. samples: 8 rows, `stride` bytes apart. Products
// wrap around to 16 bits and the result of the first pass is clamped to them, as vector code does.
void idct_portable(const int16_t* coefficients, const int16_t* steps, uint8_t* samples, ptrdiff_t stride);
void idct_avx2(const int16_t* coefficients, const int16_t* steps, uint8_t* samples,
               ptrdiff_t stride);  // on x86-64

// The sample that a block has everywhere if all its coefficients but the first are zeros.
inline uint8_t flat_sample(int16_t coefficient, int16_t step) {
  const auto product = static_cast<int16_t>(static_cast<uint32_t>(coefficient) * static_cast<uint32_t>(step));
  const int column = std::clamp(product * 4, INT16_MIN, INT16_MAX);
  return static_cast<uint8_t>(std::clamp((column + 16) >> 5, -128, 127) + 128);
}

}  // namespace ddltrain::image
