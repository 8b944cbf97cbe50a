#include "taps.h"

#include <algorithm>
#include <cmath>

namespace ddltrain::image {

namespace {

void resize_arrays(Taps& taps, int count, int stride) {
  taps.count = count;
  taps.stride = stride;
  taps.starts.resize(static_cast<size_t>(count));
  taps.counts.resize(static_cast<size_t>(count));
  taps.weights.assign(static_cast<size_t>(count) * static_cast<size_t>(stride), 0.0);
}

}  // namespace

void set_bilinear(Taps& taps, int source_count, double low, double high, int count) {
  // The order of operations is Pillow's, so that weights are the same to the bit.
  const double scale = (high - low) / count;
  const double support = std::max(scale, 1.0);
  const double slope = 1.0 / support;
  resize_arrays(taps, count, static_cast<int>(std::ceil(support)) * 2 + 1);
  for (int i = 0; i < count; ++i) {
    const double center = low + (i + 0.5) * scale;
    const int start = std::max(0, static_cast<int>(center - support + 0.5));
    const int num_taps = std::min(source_count, static_cast<int>(center + support + 0.5)) - start;
    double* weights = &taps.weights[static_cast<size_t>(i) * static_cast<size_t>(taps.stride)];
    double sum = 0.0;
    for (int k = 0; k < num_taps; ++k) {
      weights[k] = std::max(0.0, 1.0 - std::abs((k + start - center + 0.5) * slope));
      sum += weights[k];
    }
    for (int k = 0; k < num_taps; ++k) weights[k] /= sum;
    taps.starts[static_cast<size_t>(i)] = start;
    taps.counts[static_cast<size_t>(i)] = num_taps;
  }
}

void set_coarse(Taps& taps, const Taps& fine, int plane_count, int factor, bool is_smooth) {
  resize_arrays(taps, fine.count, fine.stride / factor + 3);
  for (size_t i = 0; i < static_cast<size_t>(fine.count); ++i) {
    const double* from = &fine.weights[i * static_cast<size_t>(fine.stride)];
    double* weights = &taps.weights[i * static_cast<size_t>(taps.stride)];
    const int first = fine.starts[i], last = first + fine.counts[i] - 1;
    const int start = is_smooth ? (first - 1) / 2 : first / factor;
    for (int position = first; position <= last; ++position) {
      const double weight = from[position - first];
      const int nearest = std::min(position / factor, plane_count - 1);
      if (is_smooth) {
        const int next = std::clamp(position % 2 ? nearest + 1 : nearest - 1, 0, plane_count - 1);
        weights[nearest - start] += 0.75 * weight;
        weights[next - start] += 0.25 * weight;
      } else {
        weights[nearest - start] += weight;
      }
    }
    const int end = is_smooth ? (last + 1) / 2 : last / factor;
    taps.starts[i] = start;
    taps.counts[i] = std::min(end, plane_count - 1) - start + 1;
  }
}

}  // namespace ddltrain::image
