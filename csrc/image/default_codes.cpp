#include <cstdlib>

#include "block_code.h"
#include "layout.h"

namespace ddltrain::image {

namespace {

// How often symbols come in small photos, roughly: half as often for each bit more, and with the inverse
// square of the place behind the last value. In whole numbers, since records depend on it everywhere.
Codes make_default_codes() {
  Histogram dc = {}, ac = {};
  for (int size = 0; size <= max_dc_size; ++size) {
    dc[static_cast<size_t>(size)] = uint64_t{1} << (20 - std::abs(size - 4));
  }
  for (int run = 0; run < 16; ++run) {
    for (int size = 1; size <= max_ac_size; ++size) {
      const auto places = static_cast<uint64_t>(run + 1);
      ac[static_cast<size_t>(run << 4 | size)] = (uint64_t{1} << (30 - size)) / (places * places);
    }
  }
  ac[end_of_block] = uint64_t{1} << 28;
  ac[sixteen_zeros] = uint64_t{1} << 20;
  Codes codes;
  codes.dc.fill(optimal_table(dc, max_dc_code_bits));
  codes.ac.fill(optimal_table(ac, max_ac_code_bits));
  return codes;
}

}  // namespace

const Codes& default_codes() {
  static const Codes codes = make_default_codes();
  return codes;
}

}  // namespace ddltrain::image
