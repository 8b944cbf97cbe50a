// A picture as JPEG has it: the quantised coefficients of its blocks.
#pragma once

#include <utility>
#include <vector>

#include "grid.h"

namespace ddltrain::image {

using QuantTable = std::array<uint16_t, block_size>;  // in zigzag order

struct PlaneCoefficients {
  int blocks_wide = 0;
  std::vector<int16_t> values;  // [block row][block column][64], each block in zigzag order

  void resize(int wide, int high) {
    blocks_wide = wide;
    values.resize(static_cast<size_t>(wide) * static_cast<size_t>(high) * block_size);
  }
  const int16_t* block(int x, int y) const {
    return &values[(static_cast<size_t>(y) * static_cast<size_t>(blocks_wide) + static_cast<size_t>(x)) *
                   block_size];
  }
  int16_t* block(int x, int y) { return const_cast<int16_t*>(std::as_const(*this).block(x, y)); }
};

struct Coefficients {
  Grid grid;
  std::array<QuantTable, max_planes> quant;
  std::array<PlaneCoefficients, max_planes> planes;  // whole MCUs, so at least grid.blocks_wide() wide
};

}  // namespace ddltrain::image
