// The code of one block, as in a baseline scan: the DC difference, then runs of zeros and values in zigzag
// order.
#pragma once

#include <bit>
#include <cstdlib>

#include "grid.h"
#include "huffman.h"

namespace ddltrain::image {

constexpr int max_dc_size = 11, max_ac_size = 10;  // bits of a DC difference and of a coefficient
constexpr int min_dc = -1024, max_dc = 1023;       // of 8-bit pictures; differences fit max_dc_size
constexpr int end_of_block = 0x00, sixteen_zeros = 0xf0;

// Bits of |value|.
inline int size_of(int value) { return std::bit_width(static_cast<uint32_t>(std::abs(value))); }

// What stands behind the symbol of a value: negative ones are less by one.
inline uint32_t value_bits(int value, int size) {
  return static_cast<uint32_t>(value < 0 ? value - 1 : value) & ((1u << size) - 1);
}

inline int value_of(int bits, int size) {
  return size > 0 && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

// Calls emit(is_ac, symbol, value, size) for each symbol of the block. Values must fit their sizes.
template <class Emit>
void code_block(const int16_t* block, int dc_difference, Emit&& emit) {
  const int dc_size = size_of(dc_difference);
  emit(false, dc_size, dc_difference, dc_size);
  uint64_t nonzeros = 0;
  for (int k = 1; k < block_size; ++k) nonzeros |= static_cast<uint64_t>(block[k] != 0) << k;
  int last = 0;
  for (; nonzeros != 0; nonzeros &= nonzeros - 1) {
    const int k = std::countr_zero(nonzeros), size = size_of(block[k]);
    int zeros = k - last - 1;
    for (; zeros > 15; zeros -= 16) emit(true, sixteen_zeros, 0, 0);
    emit(true, zeros << 4 | size, block[k], size);
    last = k;
  }
  if (last < block_size - 1) emit(true, end_of_block, 0, 0);
}

// Reads a block, which must be zeros before. False where the code is damaged: no code, or too many zeros.
inline bool read_block(BitReader& bits, const HuffmanReader& dc, const HuffmanReader& ac, int& dc_prediction,
                       int16_t* block) {
  const int dc_size = dc.read(bits);
  if (dc_size < 0 || dc_size > max_dc_size) return false;
  dc_prediction += value_of(bits.take(dc_size), dc_size);
  if (dc_prediction != static_cast<int16_t>(dc_prediction)) return false;
  block[0] = static_cast<int16_t>(dc_prediction);
  for (int k = 1; k < block_size; ++k) {
    const int symbol = ac.read(bits);
    if (symbol == end_of_block) return true;
    const int size = symbol & 15;
    if (symbol < 0 || size > max_ac_size || (size == 0 && symbol != sixteen_zeros)) return false;
    k += symbol >> 4;
    if (k >= block_size) return false;
    block[k] = static_cast<int16_t>(value_of(bits.take(size), size));
  }
  return true;
}

}  // namespace ddltrain::image
