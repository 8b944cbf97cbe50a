#include "picture.h"

#include <algorithm>
#include <cstring>

#include "row_filter.h"
#include "weights.h"

namespace ddltrain::image {

namespace {

// A window with what upsampling needs around it: one more sample of chroma on each side.
Rect with_margin(const Rect& window, int across, int down, const Header& header) {
  const int left = std::max(0, window.left - across), top = std::max(0, window.top - down);
  return {left, top, std::min(header.width, window.left + window.width + across) - left,
          std::min(header.height, window.top + window.height + down) - top};
}

}  // namespace

void RgbLines::resize(int count, bool is_gray) {
  const auto line = static_cast<size_t>(padded(count)), next = is_gray ? 0 : line;
  levels_.resize(3 * line + source_slack);
  uint8_t* const first = levels_.data();
  row_ = {first, first + next, first + 2 * next};
}

void Picture::open(std::span<const uint8_t> record, const Header& header, const Rect& window) {
  header_ = header;
  window_ = window;
  lines_.resize(window.width, is_gray());
  if (header.kind == Kind::pixels) {
    pixels_ = pixels_of(record);
    return;
  }
  const int across = header.h_samp[0], down = header.v_samp[0];
  const bool has_chroma = header.num_planes == 3;
  planes_ = decoder_.decode(record, has_chroma ? with_margin(window, across, down, header) : window);
  if (has_chroma) chroma_ = subsampling_of(planes_.plane[1], across, down);
}

const uint8_t* Picture::plane_row(int plane, int y, int left) const {
  const Plane& from = planes_.plane[plane];
  return from.pixels + (y - from.top) * from.stride + (left - from.left);
}

RgbRow Picture::row(int y) {
  const RgbRow result = lines_.row();
  const auto width = static_cast<size_t>(window_.width);
  if (header_.kind == Kind::pixels) {
    const auto num_planes = static_cast<size_t>(header_.num_planes);
    const size_t first =
        static_cast<size_t>(y) * static_cast<size_t>(header_.width) + static_cast<size_t>(window_.left);
    const uint8_t* const pixels = pixels_.data() + num_planes * first;
    if (is_gray()) {
      std::memcpy(result.red, pixels, width);
    } else {
      split(pixels, window_.width, result);
    }
    return result;
  }
  const uint8_t* const luma = plane_row(0, y, window_.left);
  if (is_gray()) {
    std::memcpy(result.red, luma, width);
    return result;
  }
  const int right = window_.left + window_.width;
  to_rgb(luma, upsamplers_[0].row(planes_.plane[1], chroma_, y, window_.left, right),
         upsamplers_[1].row(planes_.plane[2], chroma_, y, window_.left, right), window_.width, result);
  return result;
}

}  // namespace ddltrain::image
