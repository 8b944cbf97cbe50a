// Which part of a picture becomes the network's input.
#pragma once

#include <array>
#include <cstdint>

namespace ddltrain::image {

enum class CropKind { random_resized, pad, center };

// How windows are drawn.
struct CropRule {
  CropKind kind = CropKind::center;
  int size = 0;                      // side of the result
  int resize = 0;                    // center: the shorter side before the crop
  std::array<double, 2> scale = {};  // random_resized: area of the window, as a part of the picture's
  std::array<double, 2> ratio = {};  // random_resized: width over height
  int padding = 0;                   // pad: black border, in pixels of the result
  bool flip = false;                 // mirror half of the pictures
};

// A window of a picture, in pixels of the picture, and what happens to it at `size` x `size`.
struct Crop {
  double left, top, right, bottom;
  int shift_x = 0,
      shift_y = 0;    // the result's pixel (x, y) is the window's (x + shift_x, y + shift_y), else black
  bool flip = false;  // the result is mirrored, shift included
};

// The key of a record's random numbers.
struct RandomKey {
  uint32_t seed, epoch;
  uint64_t record;
};

Crop draw_crop(const CropRule& rule, int width, int height, const RandomKey& key);

}  // namespace ddltrain::image
