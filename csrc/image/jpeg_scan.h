// The entropy-coded part of a JPEG file: one scan, of some or all planes.
#pragma once

#include "coefficients.h"
#include "huffman.h"

namespace ddltrain::image {

// A plane as the file describes it.
struct Component {
  int id, h_samp, v_samp, quant_table;
};

struct Frame {
  int width = 0, height = 0;
  int h_max = 1, v_max = 1;  // the largest sampling
  std::vector<Component> components;

  int mcus_wide() const { return ceil_div(width, block_side * h_max); }
  int mcus_high() const { return ceil_div(height, block_side * v_max); }
};

struct Scan {
  struct Part {
    int component;  // its place in the frame
    HuffmanReader dc, ac;
  };
  std::vector<Part> parts;
  int restart_interval = 0;  // MCUs; 0: no restarts
};

// Reads the scan that `bytes` begin with. Planes must be zeros and have whole MCUs. Returns how many bytes
// the scan has, without the marker behind it. Throws CorruptRecord where it is damaged or cut off.
size_t read_scan(std::span<const uint8_t> bytes, const Frame& frame, const Scan& scan,
                 std::array<PlaneCoefficients, max_planes>& planes);

}  // namespace ddltrain::image
