#include <cmath>

#include "block_code.h"
#include "layout.h"

namespace ddltrain::image {

namespace {

Codes make_default_codes() {
  Codes codes;
  for (size_t code = 0; code < num_codes; ++code) {
    Histogram dc = {}, ac = {};
    for (int size = 0; size <= max_dc_size; ++size) {
      dc[static_cast<size_t>(size)] = static_cast<uint64_t>(std::exp2(20 - std::abs(size - 4)));
    }
    for (int run = 0; run < 16; ++run) {
      for (int size = 1; size <= max_ac_size; ++size) {
        ac[static_cast<size_t>(run << 4 | size)] =
            static_cast<uint64_t>(std::exp2(40 - 1.5 * size) / (run + 1) / (run + 1));
      }
    }
    ac[end_of_block] = static_cast<uint64_t>(std::exp2(38));
    ac[sixteen_zeros] = static_cast<uint64_t>(std::exp2(30));
    codes.dc[code] = optimal_table(dc, max_dc_code_bits);
    codes.ac[code] = optimal_table(ac, max_ac_code_bits);
  }
  return codes;
}

}  // namespace

const Codes& default_codes() {
  static const Codes codes = make_default_codes();
  return codes;
}

}  // namespace ddltrain::image
