// Canonical Huffman codes as JPEG writes them down: how many codes there are of each length, and their
// symbols.
#pragma once

#include <array>
#include <vector>

#include "bits.h"

namespace ddltrain::image {

constexpr int max_code_bits = 16;
constexpr int num_symbols = 256;

struct HuffmanTable {
  std::array<uint8_t, max_code_bits> counts = {};  // codes of 1, 2, ... bits
  std::vector<uint8_t> symbols;                    // in the order of their codes

  bool operator==(const HuffmanTable&) const = default;
};

// Whether the counts belong to a code at all, and to these symbols.
bool is_code(const HuffmanTable& table);

using Histogram = std::array<uint64_t, num_symbols>;

// The best code of at most `max_bits` for symbols that are as frequent as `histogram` says. No code is all
// ones.
HuffmanTable optimal_table(const Histogram& histogram, int max_bits);

// Decodes symbol after symbol.
class HuffmanReader {
 public:
  HuffmanReader() = default;
  explicit HuffmanReader(HuffmanTable table);
  // The next symbol, or -1 where no code matches.
  int read(BitReader& bits) const {
    const uint32_t next = bits.peek();
    const Short found = shorts_[next >> (max_code_bits - short_bits)];
    if (found.length == 0) return read_long(bits, next);
    bits.skip(found.length);
    return found.symbol;
  }

 private:
  int read_long(BitReader& bits, uint32_t next) const;

  struct Short {
    uint8_t symbol, length;  // 0: the code is longer, or there is none
  };
  static constexpr int short_bits = 9;

  std::array<Short, 1 << short_bits> shorts_ = {};   // by the next bits
  std::array<uint32_t, max_code_bits> limits_ = {};  // codes of this length are below, as 16 bits
  std::array<uint32_t, max_code_bits> firsts_ = {};  // the first code of this length, as 16 bits
  std::array<uint32_t, max_code_bits> starts_ = {};  // its symbol's place
  HuffmanTable table_;
};

class HuffmanWriter {
 public:
  HuffmanWriter() = default;
  explicit HuffmanWriter(const HuffmanTable& table);
  // With `size` bits of a value behind it.
  void write(BitWriter& bits, int symbol, uint32_t value, int size) const {
    bits.put(static_cast<uint32_t>(codes_[static_cast<size_t>(symbol)]) << size | value,
             lengths_[static_cast<size_t>(symbol)] + size);
  }
  int length(int symbol) const { return lengths_[static_cast<size_t>(symbol)]; }

 private:
  std::array<uint16_t, num_symbols> codes_ = {};
  std::array<uint8_t, num_symbols> lengths_ = {};  // 0: has no code
};

}  // namespace ddltrain::image
