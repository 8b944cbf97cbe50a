// Rows of chroma at the resolution of luma, as libjpeg-turbo gives them.
#pragma once

#include <cstdint>
#include <vector>

#include "window.h"

namespace ddltrain::image {

// How a plane is sampled more coarsely than the picture.
struct Subsampling {
  int across = 1, down = 1;  // samples of the picture for each of the plane: 1, 2 or 4
  // Whether upsampling takes three quarters of the nearest sample and one of the next, along either axis, or
  // repeats samples.
  bool is_smooth_across = false, is_smooth_down = false;
};

Subsampling subsampling_of(const Plane& plane, int across, int down);

class Upsampler {
 public:
  // Row `y` of the picture, from column `left` up to but not including `right`; the result begins with `left`
  // and lives until the next call. `plane` holds one sample more on each side than lie in the window, where
  // there are more.
  const uint8_t* row(const Plane& plane, const Subsampling& subsampling, int y, int left, int right);

 private:
  std::vector<int16_t> sums_;
  std::vector<uint8_t> row_;
};

}  // namespace ddltrain::image
