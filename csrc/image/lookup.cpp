#include "lookup.h"

#include "block_code.h"

namespace ddltrain::image {

namespace {

struct Symbol {
  int size, move;
};

Symbol dc_symbol(int symbol) { return symbol <= max_dc_size ? Symbol{symbol, 1} : Symbol{0, damage_move}; }

Symbol ac_symbol(int symbol) {
  const int size = symbol & 15, run = symbol >> 4;
  if (symbol == end_of_block) return {0, end_move};
  if (size > max_ac_size || (size == 0 && symbol != sixteen_zeros)) return {0, damage_move};
  return {size, run + 1};
}

Entry entry_of(int length, int move, int offset) {
  return static_cast<Entry>(length) | static_cast<Entry>(move) << 8 | static_cast<Entry>(offset) << 16;
}

template <size_t count>
void set_table(std::array<Entry, count>& table, const HuffmanTable& code, Symbol (*meaning)(int)) {
  constexpr int lookup_bits = std::bit_width(count) - 1;
  auto next = table.begin();
  size_t place = 0;
  int word = 0;
  for (int length = 1; length < lookup_bits; ++length, word <<= 1) {
    for (int n = 0; n < code.counts[static_cast<size_t>(length - 1)]; ++n, ++word) {
      const Symbol symbol = meaning(code.symbols[place++]);
      const int offset = -(word << symbol.size), half = 1 << (lookup_bits - length - 1);
      next = std::fill_n(next, half,
                         entry_of(length + symbol.size, symbol.move, offset - (1 << symbol.size) + 1));
      next = std::fill_n(next, half, entry_of(length + symbol.size, symbol.move, offset));
    }
  }
  std::fill(next, table.end(), entry_of(1, damage_move, 0));
}

}  // namespace

void set_lookup(Lookup& lookup, const Codes& codes, int count) {
  for (size_t code = 0; code < static_cast<size_t>(count); ++code) {
    set_table(lookup.dc[code], codes.dc[code], dc_symbol);
    set_table(lookup.ac[code], codes.ac[code], ac_symbol);
  }
}

}  // namespace ddltrain::image
