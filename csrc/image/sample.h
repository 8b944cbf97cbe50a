// From a record to the network's input, one image at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "column_filter.h"
#include "crop.h"
#include "output.h"
#include "picture.h"
#include "row_filter.h"
#include "taps.h"
#include "weights.h"

namespace ddltrain::image {

// What becomes of every record.
struct Sampling {
  CropRule crop;
  Precision precision = Precision::fast;
  OutputForm output;
};

// The filters of planes of one resolution.
struct Filters {
  Taps across, down;
  RowFilter rows;
  ColumnFilter columns;

  void set(Precision precision, int left, bool flip);
};

// Filtered rows of planes of one resolution: made as the rows of the result ask for them, and kept as long as
// they do. A row holds those of all planes, one behind the other, each padded(size) samples long.
class RowWindow {
 public:
  void start(const Filters& filters, int num_planes);

  // Pointers to the rows that `row` of the result is made of. `make(y, place)` filters row `y` of the planes.
  template <typename Make>
  const int16_t* const* rows_for(int row, Make make);

  // Samples of a row.
  int count() const { return count_; }

 private:
  const ColumnFilter* columns_ = nullptr;
  int num_places_ = 1;  // a power of two
  int next_ = 0;        // the row after the last one made
  int count_ = 0;
  std::vector<int16_t> places_;
  std::vector<const int16_t*> rows_;
};

// Holds buffers that are used again for each image. One a thread.
class Sampler {
 public:
  // Draws the record's crop and writes the image. Throws CorruptRecord.
  void sample(std::span<const uint8_t> record, const Sampling& sampling, const RandomKey& key, void* image);

  // Writes the whole picture, height x width x 3, as libjpeg-turbo decodes it. Throws CorruptRecord.
  void decode(std::span<const uint8_t> record, uint8_t* pixels);

 private:
  template <typename MakeRow>
  void write_rows(const Crop& crop, int size, MakeRow make_row);
  void copy(std::span<const uint8_t> record, const Header& header, const Crop& crop);
  void resize_exact(const Crop& crop);
  void resize_fast(const Crop& crop);
  void set_coarse_filters(bool flip);
  void resize_planes(const Filters& filters, RowWindow& window, int y, int first, int count, int16_t* result);

  Picture picture_;
  Filters fine_, coarse_;
  RowWindow fine_rows_, coarse_rows_;
  RgbLines result_, shifted_;
  std::vector<int16_t> planes_;  // a row of each plane, before colours are converted
  ImageWriter writer_;
};

}  // namespace ddltrain::image
