// How the 8 x 8 blocks of a picture are arranged: in planes, and in the order in which a scan has them.
#pragma once

#include <algorithm>

#include "record.h"

namespace ddltrain::image {

constexpr int block_side = 8;
constexpr int block_size = 64;

constexpr int ceil_div(int value, int by) { return (value + by - 1) / by; }

// Chroma planes are coarser than luma by h_samp and v_samp. An MCU is one chroma block of each kind, and the
// luma blocks of the same place.
struct Grid {
  int width, height;
  int num_planes;
  int h_samp, v_samp;

  int mcus_wide() const { return ceil_div(width, block_side * h_samp); }
  int mcus_high() const { return ceil_div(height, block_side * v_samp); }
  int plane_h_samp(int plane) const { return plane == 0 ? h_samp : 1; }
  int plane_v_samp(int plane) const { return plane == 0 ? v_samp : 1; }
  int plane_width(int plane) const { return plane == 0 ? width : ceil_div(width, h_samp); }
  int plane_height(int plane) const { return plane == 0 ? height : ceil_div(height, v_samp); }
  int blocks_wide(int plane) const { return mcus_wide() * plane_h_samp(plane); }
  int blocks_high(int plane) const { return mcus_high() * plane_v_samp(plane); }
  int blocks_per_mcu() const { return h_samp * v_samp + num_planes - 1; }
  int64_t num_blocks() const { return int64_t{mcus_wide()} * mcus_high() * blocks_per_mcu(); }
  int runs_wide(int run_mcus) const { return ceil_div(mcus_wide(), run_mcus); }
};

// Calls visit(plane, x, y), in blocks, for the MCUs first to last - 1 of an MCU row, in the order of the
// scan.
template <class Visit>
void for_each_block(const Grid& grid, int mcu_row, int first, int last, Visit&& visit) {
  for (int mcu = first; mcu < last; ++mcu) {
    for (int plane = 0; plane < grid.num_planes; ++plane) {
      const int wide = grid.plane_h_samp(plane), high = grid.plane_v_samp(plane);
      for (int y = 0; y < high; ++y) {
        for (int x = 0; x < wide; ++x) visit(plane, mcu * wide + x, mcu_row * high + y);
      }
    }
  }
}

}  // namespace ddltrain::image
