// Tables that give a whole symbol, with the value behind it, for the next bits of a run.
#pragma once

#include "layout.h"

namespace ddltrain::image {

// An entry stands for the next bits of a run: a code and the first bit of the value behind it.
//   bits 0-7    length of code and value, 1 to 20
//   bits 8-15   by how much the place in the block moves; see below
//   bits 16-31  what added to the code and the value, read as one number, gives the value, modulo 2^16
// One more bit than the longest code tells the value's sign, so no value needs a branch.
using Entry = uint32_t;

constexpr int dc_lookup_bits = max_dc_code_bits + 1, ac_lookup_bits = max_ac_code_bits + 1;

// Places from 65 to 128 tell damage: too many zeros, or no such code. `end_move` leads behind them.
constexpr int end_move = 128, damage_move = 65;

struct Lookup {
  std::array<std::array<Entry, 1 << dc_lookup_bits>, num_codes> dc;
  std::array<std::array<Entry, 1 << ac_lookup_bits>, num_codes> ac;
};

// Sets the tables of the first `count` codes.
void set_lookup(Lookup& lookup, const Codes& codes, int count);

}  // namespace ddltrain::image
