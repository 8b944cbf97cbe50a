#include "window.h"

#include <cstring>

#include "idct.h"

namespace ddltrain::image {

namespace {

constexpr size_t plane_slack_bytes = 64;

// The part of `window` that is inside of the picture.
Rect clipped(const Rect& window, int width, int height) {
  const auto end = [](int first, int count, int limit) {
    return static_cast<int>(std::min(int64_t{first} + count, int64_t{limit}));
  };
  const int left = std::max(window.left, 0), top = std::max(window.top, 0);
  const Rect inside = {left, top, end(window.left, window.width, width) - left,
                       end(window.top, window.height, height) - top};
  if (inside.width <= 0 || inside.height <= 0)
    throw std::invalid_argument("the window is outside of the picture");
  return inside;
}

const Lookup& default_lookup() {
  static const std::unique_ptr<const Lookup> lookup = [] {
    auto made = std::make_unique<Lookup>();
    set_lookup(*made, default_codes(), num_codes);
    return made;
  }();
  return *lookup;
}

uint64_t position_of(const uint8_t* bytes) { return uint64_t{reinterpret_cast<uintptr_t>(bytes)} * 8; }

}  // namespace

Planes WindowDecoder::decode(std::span<const uint8_t> record, const Rect& window) {
  const Header header = read_header(record);
  const Rect inside = clipped(window, header.width, header.height);
  if (header.kind == Kind::pixels) {
    const Plane whole = {pixels_of(record).data(),
                         ptrdiff_t{header.width} * header.num_planes,
                         0,
                         0,
                         header.width,
                         header.height,
                         header.width,
                         header.height};
    return {1, {whole}};
  }
  read_layout(record, layout_);
  Planes planes;
  planes.count = layout_.grid.num_planes;
  for (int plane = 0; plane < planes.count; ++plane) {
    planes.plane[static_cast<size_t>(plane)] = place(plane, inside);
  }
  job_.lookup = &lookup();
  list_blocks();
  list_runs(inside);
  if (!decode_runs(job_)) throw CorruptRecord("the record's picture is damaged");
  return planes;
}

Plane WindowDecoder::place(int plane, const Rect& window) {
  const Grid& grid = layout_.grid;
  const int h_samp = plane == 0 ? 1 : grid.h_samp, v_samp = plane == 0 ? 1 : grid.v_samp;
  const int block_width = block_side * h_samp, block_height = block_side * v_samp;  // in pixels
  const auto p = static_cast<size_t>(plane);
  PlaneTarget& target = job_.targets[p];
  target.first_x = window.left / block_width;
  target.first_y = window.top / block_height;
  target.blocks_wide = ceil_div(window.left + window.width, block_width) - target.first_x;
  target.blocks_high = ceil_div(window.top + window.height, block_height) - target.first_y;
  target.stride = ptrdiff_t{block_side} * target.blocks_wide;
  const size_t bytes =
      static_cast<size_t>(target.stride) * static_cast<size_t>(block_side * target.blocks_high);
  if (samples_[p].size() < bytes + plane_slack_bytes) samples_[p].resize(bytes + plane_slack_bytes);
  target.samples = samples_[p].data();
  for (int k = 0; k < block_size; ++k) {
    target.steps[static_cast<size_t>(slot_of_zigzag(k))] =
        static_cast<int16_t>(layout_.quant[p][static_cast<size_t>(k)]);
  }
  const int left = target.first_x * block_side, top = target.first_y * block_side;
  const int full_width = grid.plane_width(plane), full_height = grid.plane_height(plane);
  return {target.samples,
          target.stride,
          left,
          top,
          std::min(target.blocks_wide * block_side, full_width - left),
          std::min(target.blocks_high * block_side, full_height - top),
          full_width,
          full_height};
}

// Tables are made anew only for other codes than the last picture's.
const Lookup& WindowDecoder::lookup() {
  if (!layout_.has_own_codes) return default_lookup();
  const int count = code_of(layout_.grid.num_planes - 1) + 1;
  if (!own_lookup_) own_lookup_ = std::make_unique<Lookup>();
  set_lookup(*own_lookup_, layout_.codes, count);
  return *own_lookup_;
}

void WindowDecoder::list_blocks() {
  const Grid& grid = layout_.grid;
  job_.blocks_per_mcu = 0;
  for_each_block(grid, 0, 0, 1, [&](int plane, int x, int y) {
    job_.blocks[static_cast<size_t>(job_.blocks_per_mcu++)] = {plane, grid.plane_h_samp(plane),
                                                               grid.plane_v_samp(plane), x, y};
  });
}

// The runs that have MCUs under the window.
void WindowDecoder::list_runs(const Rect& window) {
  const Grid& grid = layout_.grid;
  const int mcu_width = block_side * grid.h_samp, mcu_height = block_side * grid.v_samp;
  const int first_mcu = window.left / mcu_width, behind_mcu = ceil_div(window.left + window.width, mcu_width);
  const int first_row = window.top / mcu_height,
            behind_row = ceil_div(window.top + window.height, mcu_height);
  const int runs_wide = grid.runs_wide(layout_.run_mcus);
  const int first_run = first_mcu / layout_.run_mcus, behind_run = ceil_div(behind_mcu, layout_.run_mcus);
  job_.runs.clear();
  uint64_t at = 0;
  int run = 0;
  for (; run < first_row * runs_wide; ++run) at += layout_.run_bits(run);
  for (int row = first_row; row < behind_row; ++row) {
    for (int i = 0; i < runs_wide; ++i) {
      const uint64_t begin = at;
      at += layout_.run_bits(run++);
      if (i < first_run || i >= behind_run) continue;
      const int mcu_x = i * layout_.run_mcus;
      const int num_mcus = std::min(layout_.run_mcus, grid.mcus_wide() - mcu_x);
      const int num_wanted = std::min(num_mcus, behind_mcu - mcu_x);
      job_.runs.push_back({begin, at, mcu_x, row, num_wanted, num_wanted == num_mcus});
    }
  }
  if (job_.runs.back().end > layout_.scan.size() * 8) throw CorruptRecord("the record is cut off");
  locate_runs();
}

// Turns places in the scan into places in memory. Runs near the end are moved to where bytes behind them can
// be read.
void WindowDecoder::locate_runs() {
  const std::span<const uint8_t> scan = layout_.scan;
  const auto is_near_end = [&](const Run& run) { return run.end / 8 + run_slack_bytes > scan.size(); };
  const auto near = std::ranges::find_if(job_.runs, is_near_end);
  const uint64_t base = position_of(scan.data());
  for (auto run = job_.runs.begin(); run != near; ++run) {
    run->begin += base;
    run->end += base;
  }
  if (near == job_.runs.end()) return;
  const std::span<const uint8_t> rest = scan.subspan(near->begin / 8);
  const uint64_t skipped = near->begin / 8 * 8;
  last_runs_.assign(rest.size() + run_slack_bytes, 0);
  std::memcpy(last_runs_.data(), rest.data(), rest.size());
  for (auto run = near; run != job_.runs.end(); ++run) {
    run->begin += position_of(last_runs_.data()) - skipped;
    run->end += position_of(last_runs_.data()) - skipped;
  }
}

}  // namespace ddltrain::image
