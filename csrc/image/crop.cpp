#include "crop.h"

#include <algorithm>
#include <cmath>

#include "random.h"

namespace ddltrain::image {

namespace {

// Draw 0 of a record is for the flip and the padding; draws 1 to 10 are the tries for a window.
constexpr uint32_t num_tries = 10;

int rounded(double value) { return static_cast<int>(std::floor(value + 0.5)); }

Crop window(int left, int top, int width, int height) {
  return {static_cast<double>(left), static_cast<double>(top), static_cast<double>(left + width),
          static_cast<double>(top + height)};
}

// What "resize the shorter side to `resize`, then crop `size` from the centre" shows. Sides and offsets are
// rounded as torchvision does: sides down, offsets to the nearest, halves to even.
Crop center_window(int width, int height, int resize, int size) {
  const double longer = static_cast<double>(resize) * std::max(width, height) / std::min(width, height);
  const int resized_width = width <= height ? resize : static_cast<int>(longer);
  const int resized_height = width <= height ? static_cast<int>(longer) : resize;
  const double left = std::nearbyint((resized_width - size) / 2.0);
  const double top = std::nearbyint((resized_height - size) / 2.0);
  const double across = static_cast<double>(width) / resized_width;
  const double down = static_cast<double>(height) / resized_height;
  return {left * across, top * down, (left + size) * across, (top + size) * down};
}

// A window of random area and aspect ratio (Szegedy et al. 2014); after ten misfits, the largest centred one
// in range.
Crop random_window(const CropRule& rule, int width, int height, const RandomKey& key) {
  const double low = std::log(rule.ratio[0]), high = std::log(rule.ratio[1]);
  for (uint32_t draw = 1; draw <= num_tries; ++draw) {
    const auto words = random_words(key.seed, key.epoch, key.record, draw);
    const double area = static_cast<double>(width) * height * uniform(words[0], rule.scale[0], rule.scale[1]);
    const double aspect = std::exp(uniform(words[1], low, high));
    const int crop_width = rounded(std::sqrt(area * aspect));
    const int crop_height = rounded(std::sqrt(area / aspect));
    if (0 < crop_width && crop_width <= width && 0 < crop_height && crop_height <= height) {
      return window(below(words[2], width - crop_width + 1), below(words[3], height - crop_height + 1),
                    crop_width, crop_height);
    }
  }
  const double aspect = std::clamp(static_cast<double>(width) / height, rule.ratio[0], rule.ratio[1]);
  const int crop_width = std::max(1, std::min(width, rounded(height * aspect)));
  const int crop_height = std::max(1, std::min(height, rounded(width / aspect)));
  return window((width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height);
}

}  // namespace

Crop draw_crop(const CropRule& rule, int width, int height, const RandomKey& key) {
  const auto words = random_words(key.seed, key.epoch, key.record, 0);
  Crop crop{};
  switch (rule.kind) {
    case CropKind::random_resized:
      crop = random_window(rule, width, height, key);
      break;
    case CropKind::pad:
      crop = center_window(width, height, rule.size, rule.size);
      crop.shift_x = below(words[1], 2 * rule.padding + 1) - rule.padding;
      crop.shift_y = below(words[2], 2 * rule.padding + 1) - rule.padding;
      break;
    case CropKind::center:
      crop = center_window(width, height, rule.resize, rule.size);
      break;
  }
  crop.flip = rule.flip && words[0] >> 31;
  return crop;
}

}  // namespace ddltrain::image
