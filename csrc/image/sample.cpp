#include "sample.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ddltrain::image {

namespace {

// Columns or rows of the picture that taps use.
struct Extent {
  int first, count;
};

Extent extent_of(const Taps& taps) { return {taps.first(), taps.behind() - taps.first()}; }

// Moves a row to the left by `shift` and fills up with black.
void shift_row(const uint8_t* row, int size, int shift, uint8_t* result) {
  const int first = std::clamp(-shift, 0, size), behind = std::clamp(size - shift, first, size);
  std::memset(result, 0, static_cast<size_t>(size));
  if (first < behind) std::memcpy(result + first, row + first + shift, static_cast<size_t>(behind - first));
}

bool is_whole(const Crop& crop, const Header& header, int size) {
  return header.width == size && header.height == size && crop.left == 0 && crop.top == 0 &&
         crop.right == size && crop.bottom == size;
}

}  // namespace

void Filters::set(Precision precision, int left, bool flip) {
  rows.set(across, precision, left, flip);
  columns.set(down, precision);
}

void RowWindow::start(const Filters& filters, int num_planes) {
  columns_ = &filters.columns;
  const auto max_taps = static_cast<unsigned>(columns_->max_taps());
  num_places_ = static_cast<int>(std::bit_ceil(max_taps));
  next_ = 0;
  count_ = num_planes * padded(filters.rows.count());
  places_.resize(static_cast<size_t>(count_) * static_cast<size_t>(num_places_));
  rows_.resize(max_taps);
}

template <typename Make>
const int16_t* const* RowWindow::rows_for(int row, Make make) {
  const auto place_of = [&](int y) {
    return places_.data() + static_cast<ptrdiff_t>(y & (num_places_ - 1)) * count_;
  };
  const int start = columns_->start(row), behind = start + columns_->num_taps(row);
  for (next_ = std::max(next_, start); next_ < behind; ++next_) make(next_, place_of(next_));
  for (int y = start; y < behind; ++y) rows_[static_cast<size_t>(y - start)] = place_of(y);
  return rows_.data();
}

void Sampler::sample(std::span<const uint8_t> record, const Sampling& sampling, const RandomKey& key,
                     void* image) {
  const Header header = read_header(record);
  const int size = sampling.output.size;
  const Crop crop = draw_crop(sampling.crop, header.width, header.height, key);
  writer_.start(sampling.output, image);
  if (is_whole(crop, header, size)) return copy(record, header, crop);
  set_bilinear(fine_.across, header.width, crop.left, crop.right, size);
  set_bilinear(fine_.down, header.height, crop.top, crop.bottom, size);
  const Extent columns = extent_of(fine_.across), rows = extent_of(fine_.down);
  picture_.open(record, header, {columns.first, rows.first, columns.count, rows.count});
  result_.resize(size, picture_.is_gray());
  // Pictures kept as pixels have no planes to resize before colours are converted.
  if (sampling.precision == Precision::exact || header.kind == Kind::pixels) {
    fine_.set(Precision::exact, columns.first, crop.flip);
    resize_exact(crop);
  } else {
    fine_.set(Precision::fast, columns.first, crop.flip);
    resize_fast(crop);
  }
}

void Sampler::decode(std::span<const uint8_t> record, uint8_t* pixels) {
  const Header header = read_header(record);
  picture_.open(record, header, {0, 0, header.width, header.height});
  for (int y = 0; y < header.height; ++y) {
    const size_t before = 3 * static_cast<size_t>(y) * static_cast<size_t>(header.width);
    interleave(picture_.row(y), header.width, pixels + before);
  }
}

// Writes an image of `size` rows, which `make_row(y)` gives before they are shifted.
template <typename MakeRow>
void Sampler::write_rows(const Crop& crop, int size, MakeRow make_row) {
  const int shift_x = crop.flip ? -crop.shift_x : crop.shift_x;
  shifted_.resize(size, false);
  const RgbRow shifted = shifted_.row();
  for (int y = 0; y < size; ++y) {
    const int from = y + crop.shift_y;
    const bool is_black = from < 0 || from >= size;
    const RgbRow row = is_black ? shifted : make_row(from);
    if (!is_black && shift_x == 0) {
      writer_.write_row(row, y);
      continue;
    }
    const int shift = is_black ? size : shift_x;
    shift_row(row.red, size, shift, shifted.red);
    shift_row(row.green, size, shift, shifted.green);
    shift_row(row.blue, size, shift, shifted.blue);
    writer_.write_row(shifted, y);
  }
}

// A picture that needs no resizing.
void Sampler::copy(std::span<const uint8_t> record, const Header& header, const Crop& crop) {
  const int size = header.width;
  picture_.open(record, header, {0, 0, size, size});
  write_rows(crop, size, [&](int y) {
    const RgbRow row = picture_.row(y);
    if (crop.flip) {
      mirror(row.red, size);
      if (!picture_.is_gray()) {
        mirror(row.green, size);
        mirror(row.blue, size);
      }
    }
    return row;
  });
}

void Sampler::resize_exact(const Crop& crop) {
  const int num_channels = picture_.is_gray() ? 1 : 3, line = padded(fine_.across.count);
  const RgbRow result = result_.row();
  fine_rows_.start(fine_, num_channels);
  write_rows(crop, fine_.across.count, [&](int y) {
    const auto rows = fine_rows_.rows_for(y, [&](int source_y, int16_t* place) {
      const RgbRow source = picture_.row(source_y);
      const uint8_t* const channels[] = {source.red, source.green, source.blue};
      for (int i = 0; i < num_channels; ++i) fine_.rows.run(channels[i], place + i * line);
    });
    fine_.columns.run_exact(y, rows, fine_rows_.count(), result.red);
    return result;
  });
}

void Sampler::resize_fast(const Crop& crop) {
  const Subsampling& chroma = picture_.chroma();
  const bool has_coarse = !picture_.is_gray() && (chroma.across > 1 || chroma.down > 1);
  const int num_fine = picture_.is_gray() || has_coarse ? 1 : 3, line = padded(fine_.across.count);
  if (has_coarse) set_coarse_filters(crop.flip);
  fine_rows_.start(fine_, num_fine);
  planes_.resize(3 * static_cast<size_t>(line));
  const RgbRow result = result_.row();
  write_rows(crop, fine_.across.count, [&](int y) {
    resize_planes(fine_, fine_rows_, y, 0, num_fine, planes_.data());
    if (has_coarse) resize_planes(coarse_, coarse_rows_, y, 1, 2, planes_.data() + line);
    if (picture_.is_gray()) {
      to_levels(planes_.data(), line, result.red);
    } else {
      to_rgb(planes_.data(), planes_.data() + line, planes_.data() + 2 * line, line, result);
    }
    return result;
  });
}

void Sampler::set_coarse_filters(bool flip) {
  const Subsampling& chroma = picture_.chroma();
  set_coarse(coarse_.across, fine_.across, picture_.plane_width(1), chroma.across, chroma.is_smooth_across);
  set_coarse(coarse_.down, fine_.down, picture_.plane_height(1), chroma.down, chroma.is_smooth_down);
  coarse_.set(Precision::fast, coarse_.across.first(), flip);
  coarse_rows_.start(coarse_, 2);
}

// Row `y` of the result of `count` planes from the `first` on.
void Sampler::resize_planes(const Filters& filters, RowWindow& window, int y, int first, int count,
                            int16_t* result) {
  const int left = filters.across.first(), line = window.count() / count;
  const auto rows = window.rows_for(y, [&](int source_y, int16_t* place) {
    for (int i = 0; i < count; ++i) {
      filters.rows.run(picture_.plane_row(first + i, source_y, left), place + i * line);
    }
  });
  filters.columns.run_fast(y, rows, window.count(), result);
}

}  // namespace ddltrain::image
