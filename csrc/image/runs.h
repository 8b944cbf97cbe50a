// Decoding runs: from bits to samples, several runs at once.
#pragma once

#include <array>
#include <vector>

#include "lookup.h"

namespace ddltrain::image {

constexpr int max_blocks_per_mcu = 10;

// Bytes behind the end of a run that may be read: a damaged block has no more bits than this.
constexpr int run_slack_bytes = 192;

// Where the samples of a plane go. Blocks outside of `first_x`, ... are not wanted.
struct PlaneTarget {
  alignas(32) std::array<int16_t, block_size> steps;  // of quantisation, by slot
  uint8_t* samples;
  ptrdiff_t stride;
  int first_x, first_y, blocks_wide, blocks_high;
};

// A block in each MCU: block (mcu_x * h_samp + x, mcu_y * v_samp + y) of a plane.
struct McuBlock {
  int plane, h_samp, v_samp, x, y;
};

// Bits are counted from address 0 of memory, so that a place needs one register.
struct Run {
  uint64_t begin, end;
  int mcu_x, mcu_y;  // its first MCU
  int num_mcus;      // that are wanted, from the first on
  bool is_whole;     // these are all that it has
};

struct RunJob {
  std::array<PlaneTarget, max_planes> targets;
  std::array<McuBlock, max_blocks_per_mcu> blocks;
  int blocks_per_mcu;
  const Lookup* lookup;
  std::vector<Run> runs;
};

// Decodes all runs. False where one is damaged; samples are then anything.
bool decode_runs(const RunJob& job);

}  // namespace ddltrain::image
