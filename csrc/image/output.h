// Finished images: what memory they fill.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "color.h"

namespace ddltrain::image {

enum class OutputType { uint8, float32, bfloat16 };

// The form of [3, size, size] images. Floating-point values are (level - offset) * factor, each rounded to
// float32.
struct OutputForm {
  OutputType type = OutputType::uint8;
  bool channels_last = false;  // memory is [size, size, 3]
  int size = 0;
  std::array<float, 3> offset = {}, factor = {};

  size_t image_bytes() const;
};

// Writes one image after another, row by row. Reuses its memory.
class ImageWriter {
 public:
  void start(const OutputForm& form, void* image);
  void write_row(RgbRow row, int y);

 private:
  // Values are normalised in groups of whole vectors of eight and whole pixels.
  static constexpr size_t group = 24;
  struct Scale {
    std::array<float, group> offset, factor;
  };
  template <typename T>
  static void normalize(const uint8_t* levels, size_t count, const Scale& scale, T* values);
  template <typename T>
  static void normalize_portable(const uint8_t* levels, size_t first, size_t count, const Scale& scale,
                                 T* values);
  template <typename T>
  static void normalize_avx2(const uint8_t* levels, size_t count, const Scale& scale, T* values);

  void write_levels(const uint8_t* levels, size_t count, const Scale& scale, size_t first);

  OutputForm form_;
  void* image_ = nullptr;
  std::array<Scale, 3> scales_;  // of each channel; of all in turn where they are interleaved
  std::vector<uint8_t> pixels_;
};

}  // namespace ddltrain::image
