// The parts of a `jpeg` record (record.h has the picture of it).
#pragma once

#include "coefficients.h"
#include "huffman.h"

namespace ddltrain::image {

// Short codes keep the decoder's tables small.
constexpr int max_dc_code_bits = 8, max_ac_code_bits = 10;
constexpr int max_run_mcus = 255;

// Luma has one code, both chroma planes have the other.
constexpr int num_codes = 2;
constexpr int code_of(int plane) { return plane == 0 ? 0 : 1; }

struct Codes {
  std::array<HuffmanTable, num_codes> dc, ac;

  bool operator==(const Codes&) const = default;
};

// Codes that suit most pictures, for small ones, which cannot afford their own.
const Codes& default_codes();

struct Layout {
  Grid grid = {};
  int run_mcus = 0;
  std::array<QuantTable, max_planes> quant = {};
  bool has_own_codes = false;
  Codes codes;                     // where it has its own
  bool has_wide_index = false;     // entries of 4 bytes, not 2
  std::span<const uint8_t> index;  // of the runs, row by row
  std::span<const uint8_t> scan;

  int num_runs() const { return grid.runs_wide(run_mcus) * grid.mcus_high(); }
  // The bits that a run has.
  uint32_t run_bits(int run) const {
    const uint8_t* entry = &index[static_cast<size_t>(run) * (has_wide_index ? 4 : 2)];
    const uint32_t low = entry[0] | static_cast<uint32_t>(entry[1]) << 8;
    return has_wide_index
               ? low | static_cast<uint32_t>(entry[2]) << 16 | static_cast<uint32_t>(entry[3]) << 24
               : low;
  }
  const Codes& used_codes() const { return has_own_codes ? codes : default_codes(); }
};

// Reads all but the runs, into `layout`, whose memory is used again. Throws CorruptRecord.
void read_layout(std::span<const uint8_t> record, Layout& layout);

// The bytes of all but the index and the runs.
std::vector<uint8_t> write_layout(const Layout& layout);

}  // namespace ddltrain::image
