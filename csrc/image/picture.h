// A window of a record, decoded, and its rows in red, green and blue.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "color.h"
#include "record.h"
#include "upsample.h"
#include "window.h"

namespace ddltrain::image {

// Memory for a row of red, of green and of blue, one behind the other; all three are the same for gray
// pictures.
class RgbLines {
 public:
  // padded(count) levels each, and source_slack in the end.
  void resize(int count, bool is_gray);
  RgbRow row() const { return row_; }

 private:
  std::vector<uint8_t> levels_;
  RgbRow row_ = {};
};

class Picture {
 public:
  // Decodes what is needed for `window`. The record must outlive the rows. Throws CorruptRecord.
  void open(std::span<const uint8_t> record, const Header& header, const Rect& window);

  bool is_gray() const { return header_.num_planes == 1; }

  // Row `y` of the picture, from the window's left to its right, as libjpeg-turbo decodes it. Lives until the
  // next call.
  RgbRow row(int y);

  // Row `y` of a plane of a jpeg record, from its column `left` on.
  const uint8_t* plane_row(int plane, int y, int left) const;
  int plane_height(int plane) const { return planes_.plane[plane].full_height; }
  int plane_width(int plane) const { return planes_.plane[plane].full_width; }
  const Subsampling& chroma() const { return chroma_; }

 private:
  Header header_ = {};
  Rect window_ = {};
  WindowDecoder decoder_;
  Planes planes_ = {};               // of jpeg records
  std::span<const uint8_t> pixels_;  // of pixels records
  Subsampling chroma_;
  std::array<Upsampler, 2> upsamplers_;
  RgbLines lines_;
};

}  // namespace ddltrain::image
