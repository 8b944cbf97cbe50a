// Colours of rows of samples: to red, green and blue, and the order of bytes.
#pragma once

#include <cstdint>

namespace ddltrain::image {

// Rows of red, green and blue levels. Functions below write padded(count) of them, but for those that move
// bytes.
struct RgbRow {
  uint8_t *red, *green, *blue;
};

// As libjpeg-turbo converts 8-bit samples.
void to_rgb(const uint8_t* luma, const uint8_t* blueness, const uint8_t* redness, int count, RgbRow result);

// The same from levels times 128, as `fast` filters give them; rounds once, at the end.
void to_rgb(const int16_t* luma, const int16_t* blueness, const int16_t* redness, int count, RgbRow result);

// Levels times 128 to levels.
void to_levels(const int16_t* samples, int count, uint8_t* result);

// From and to bytes in the order red, green, blue; exactly `count` pixels of them.
void split(const uint8_t* pixels, int count, RgbRow result);
void interleave(RgbRow row, int count, uint8_t* pixels);

void mirror(uint8_t* row, int count);

}  // namespace ddltrain::image
