// The weights of a resize along one axis: which samples of the source make each sample of the result.
#pragma once

#include <cstdint>
#include <vector>

namespace ddltrain::image {

// Sample i of the result is the sum over k < counts[i] of weights[i * stride + k] * source[starts[i] + k].
struct Taps {
  int count = 0;   // samples of the result
  int stride = 0;  // weights kept for each
  std::vector<int> starts, counts;
  std::vector<double> weights;

  // The samples that are used at all: from `first` up to but not including `behind`. Taps move on with the
  // result.
  int first() const { return starts.front(); }
  int behind() const { return starts.back() + counts.back(); }
};

// Pillow's antialiased bilinear filter: `count` samples that show `low` to `high` of a source of
// `source_count` samples. Reuses the memory of `taps`.
void set_bilinear(Taps& taps, int source_count, double low, double high, int count);

// The taps on a coarser plane that give what `fine` gives on that plane after upsampling: by `factor`, plane
// samples repeated, or, where `is_smooth` (factor 2), three quarters of the nearest and one of the next.
void set_coarse(Taps& taps, const Taps& fine, int plane_count, int factor, bool is_smooth);

}  // namespace ddltrain::image
