#include "upsample.h"

#include <algorithm>

#include "isa.h"
#include "row_filter.h"

namespace ddltrain::image {

namespace {

// Three parts of the nearest row and one of the next.
struct Weigh {
  [[gnu::always_inline]] static void run(const uint8_t* nearest, const uint8_t* next, int count,
                                         int16_t* result) {
    int16_t* __restrict sums = result;
    for (int i = 0; i < count; ++i) sums[i] = static_cast<int16_t>(3 * nearest[i] + next[i]);
  }
};

struct Widen {
  [[gnu::always_inline]] static void run(const uint8_t* row, int count, int16_t* result) {
    int16_t* __restrict samples = result;
    for (int i = 0; i < count; ++i) samples[i] = row[i];
  }
};

// Halves and quarters are rounded up and down in turn, which keeps the mean.
template <int shift, int even_bias, int odd_bias>
struct Double {
  [[gnu::always_inline]] static void run(const int16_t* sums, int count, uint8_t* result) {
    uint8_t* __restrict row = result;
    for (int i = 0; i < count; ++i) {
      row[2 * i] = static_cast<uint8_t>((3 * sums[i] + sums[i - 1] + even_bias) >> shift);
      row[2 * i + 1] = static_cast<uint8_t>((3 * sums[i] + sums[i + 1] + odd_bias) >> shift);
    }
  }
};

struct Quarter {
  [[gnu::always_inline]] static void run(const int16_t* sums, int count, int bias, uint8_t* result) {
    uint8_t* __restrict row = result;
    for (int i = 0; i < count; ++i) row[i] = static_cast<uint8_t>((sums[i] + bias) >> 2);
  }
};

void repeat(const uint8_t* row, int times, int first, int count, uint8_t* result) {
  for (int i = 0; i < count; ++i) result[i] = row[(first + i) / times];
}

}  // namespace

Subsampling subsampling_of(const Plane& plane, int across, int down) {
  const bool has_neighbours = plane.full_width > 2;  // libjpeg-turbo repeats samples of narrower planes
  Subsampling found{across, down};
  found.is_smooth_across = across == 2 && down <= 2 && has_neighbours;
  found.is_smooth_down = down == 2 && (across == 1 || found.is_smooth_across);
  return found;
}

const uint8_t* Upsampler::row(const Plane& plane, const Subsampling& subsampling, int y, int left,
                              int right) {
  // Pointers to column 0 of the plane, which need not be in memory.
  const auto plane_row = [&](int row) {
    return plane.pixels + (row - plane.top) * plane.stride - plane.left;
  };
  const int nearest = y / subsampling.down;
  if (subsampling.across == 1 && !subsampling.is_smooth_down) return plane_row(nearest) + left;

  const int next = std::clamp(y % 2 ? nearest + 1 : nearest - 1, 0, plane.full_height - 1);
  const int first = left / subsampling.across, last = (right - 1) / subsampling.across;
  const int count = last - first + 1;
  sums_.resize(static_cast<size_t>(count + 2));
  row_.resize(static_cast<size_t>(count * subsampling.across + source_slack));
  if (!subsampling.is_smooth_across && !subsampling.is_smooth_down) {
    repeat(plane_row(nearest), subsampling.across, left, right - left, row_.data());
    return row_.data();
  }
  const int low = std::max(first - 1, 0), high = std::min(last + 1, plane.full_width - 1);
  int16_t* sums = sums_.data() + 1;  // sums[0] is for column `first`
  if (subsampling.is_smooth_down) {
    run_best<Weigh>(plane_row(nearest) + low, plane_row(next) + low, high - low + 1, sums + low - first);
  } else {
    run_best<Widen>(plane_row(nearest) + low, high - low + 1, sums + low - first);
  }
  if (low == first) sums[-1] = sums[0];
  if (high == last) sums[count] = sums[count - 1];

  const int16_t* const from = sums;
  if (!subsampling.is_smooth_across) {
    run_best<Quarter>(from, count, y % 2 ? 2 : 1, row_.data());
  } else if (subsampling.is_smooth_down) {
    run_best<Double<4, 8, 7>>(from, count, row_.data());
  } else {
    run_best<Double<2, 1, 2>>(from, count, row_.data());
  }
  return row_.data() + (left - first * subsampling.across);
}

}  // namespace ddltrain::image
