// Decoding a part of a picture.
#pragma once

#include <memory>
#include <vector>

#include "record.h"
#include "runs.h"

namespace ddltrain::image {

// In pixels of the whole picture.
struct Rect {
  int left, top, width, height;
};

// A part of a plane, in samples of that plane. It has at least the samples that lie under the window.
struct Plane {
  const uint8_t* pixels;  // the first of them
  ptrdiff_t stride;       // bytes from one row to the next
  int left, top, width, height;
  int full_width, full_height;  // of the whole plane
};

struct Planes {
  int count = 0;
  std::array<Plane, max_planes> plane = {};
};

// Keeps its memory from one picture to the next. For one thread at a time.
class WindowDecoder {
 public:
  // The planes of the part of `window` that is inside the picture, valid until the next call; at least 32
  // bytes behind a plane's last row can be read. A `pixels` record gives one plane: the whole picture,
  // interleaved. Samples are those of libjpeg's "islow". Throws CorruptRecord; std::invalid_argument where
  // nothing is inside.
  Planes decode(std::span<const uint8_t> record, const Rect& window);

 private:
  Plane place(int plane, const Rect& window);
  const Lookup& lookup();
  void list_blocks();
  void list_runs(const Rect& window);
  void locate_runs();

  Layout layout_;
  RunJob job_;
  std::unique_ptr<Lookup> own_lookup_;
  std::array<std::vector<uint8_t>, max_planes> samples_;
  std::vector<uint8_t> last_runs_;  // with bytes to spare behind them
};

}  // namespace ddltrain::image
