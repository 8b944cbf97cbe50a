#include "block_code.h"
#include "layout.h"
#include "pack.h"

namespace ddltrain::image {

namespace {

// Reads the runs one by one; more careful and much slower than WindowDecoder.
Coefficients read_coefficients(std::span<const uint8_t> record) {
  Layout layout;
  read_layout(record, layout);
  const Grid& grid = layout.grid;
  Coefficients picture = {grid, layout.quant, {}};
  for (int plane = 0; plane < grid.num_planes; ++plane) {
    picture.planes[static_cast<size_t>(plane)].resize(grid.blocks_wide(plane), grid.blocks_high(plane));
  }
  std::array<HuffmanReader, num_codes> dc, ac;
  for (size_t code = 0; code < num_codes; ++code) {
    dc[code] = HuffmanReader(layout.used_codes().dc[code]);
    ac[code] = HuffmanReader(layout.used_codes().ac[code]);
  }
  BitReader bits(layout.scan);
  uint64_t end = 0;
  for (int run = 0; run < layout.num_runs(); ++run) {
    const int first = run % grid.runs_wide(layout.run_mcus) * layout.run_mcus;
    std::array<int, max_planes> predictions = {};
    bool is_whole = true;
    for_each_block(grid, run / grid.runs_wide(layout.run_mcus), first,
                   std::min(first + layout.run_mcus, grid.mcus_wide()), [&](int plane, int x, int y) {
                     const auto p = static_cast<size_t>(plane), code = static_cast<size_t>(code_of(plane));
                     is_whole = is_whole &&
                                read_block(bits, dc[code], ac[code], predictions[p],
                                           picture.planes[p].block(x, y)) &&
                                min_dc <= predictions[p] && predictions[p] <= max_dc;
                   });
    end += layout.run_bits(run);
    if (!is_whole || bits.position() != end || bits.is_past_end()) throw CorruptRecord("a run is damaged");
  }
  return picture;
}

// A JPEG file, written marker by marker.
class JpegWriter {
 public:
  explicit JpegWriter(const Coefficients& picture) : picture_(picture), grid_(picture.grid) {}

  std::vector<uint8_t> write() {
    put({0xff, 0xd8});
    put_segment(0xe0, {'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0});
    write_quant_tables();
    write_frame();
    write_scan();
    put({0xff, 0xd9});
    return std::move(bytes_);
  }

 private:
  using Bytes = std::vector<uint8_t>;

  void put(const Bytes& bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void put_segment(uint8_t marker, const Bytes& bytes) {
    const size_t length = bytes.size() + 2;
    put({0xff, marker, static_cast<uint8_t>(length >> 8), static_cast<uint8_t>(length)});
    put(bytes);
  }

  void write_quant_tables() {
    for (int plane = 0; plane < grid_.num_planes; ++plane) {
      const QuantTable& table = picture_.quant[static_cast<size_t>(plane)];
      const bool is_wide = std::ranges::max(table) > UINT8_MAX;
      has_wide_steps_ |= is_wide;
      Bytes bytes = {static_cast<uint8_t>(is_wide << 4 | plane)};
      for (const uint16_t step : table) {
        if (is_wide) bytes.push_back(static_cast<uint8_t>(step >> 8));
        bytes.push_back(static_cast<uint8_t>(step));
      }
      put_segment(0xdb, bytes);
    }
  }

  void write_frame() {
    const auto byte = [](int value) { return static_cast<uint8_t>(value); };
    Bytes bytes = {8,
                   byte(grid_.height >> 8),
                   byte(grid_.height),
                   byte(grid_.width >> 8),
                   byte(grid_.width),
                   byte(grid_.num_planes)};
    for (int plane = 0; plane < grid_.num_planes; ++plane) {
      bytes.push_back(byte(plane + 1));
      bytes.push_back(byte(grid_.plane_h_samp(plane) << 4 | grid_.plane_v_samp(plane)));
      bytes.push_back(byte(plane));
    }
    put_segment(has_wide_steps_ ? 0xc1 : 0xc0, bytes);  // baseline has steps of one byte only
  }

  void write_code(int head, const HuffmanTable& table) {
    Bytes bytes = {static_cast<uint8_t>(head)};
    bytes.insert(bytes.end(), table.counts.begin(), table.counts.end());
    bytes.insert(bytes.end(), table.symbols.begin(), table.symbols.end());
    put_segment(0xc4, bytes);
  }

  template <class Emit>
  void code_picture(Emit&& emit) const {
    std::array<int, max_planes> predictions = {};
    for (int row = 0; row < grid_.mcus_high(); ++row) {
      for_each_block(grid_, row, 0, grid_.mcus_wide(), [&](int plane, int x, int y) {
        const auto p = static_cast<size_t>(plane);
        const int16_t* block = picture_.planes[p].block(x, y);
        code_block(block, block[0] - predictions[p], [&](bool is_ac, int symbol, int value, int size) {
          emit(static_cast<size_t>(code_of(plane)), is_ac, symbol, value, size);
        });
        predictions[p] = block[0];
      });
    }
  }

  void write_scan() {
    std::array<Histogram, num_codes> dc_histograms = {}, ac_histograms = {};
    code_picture([&](size_t code, bool is_ac, int symbol, int, int) {
      ++(is_ac ? ac_histograms : dc_histograms)[code][static_cast<size_t>(symbol)];
    });
    std::array<HuffmanWriter, num_codes> dc, ac;
    for (size_t code = 0; code <= static_cast<size_t>(code_of(grid_.num_planes - 1)); ++code) {
      const HuffmanTable dc_table = optimal_table(dc_histograms[code], max_code_bits);
      const HuffmanTable ac_table = optimal_table(ac_histograms[code], max_code_bits);
      write_code(static_cast<int>(code), dc_table);
      write_code(static_cast<int>(0x10 | code), ac_table);
      dc[code] = HuffmanWriter(dc_table);
      ac[code] = HuffmanWriter(ac_table);
    }
    Bytes bytes = {static_cast<uint8_t>(grid_.num_planes)};
    for (int plane = 0; plane < grid_.num_planes; ++plane) {
      bytes.push_back(static_cast<uint8_t>(plane + 1));
      bytes.push_back(static_cast<uint8_t>(code_of(plane) * 0x11));
    }
    bytes.insert(bytes.end(), {0, 63, 0});
    put_segment(0xda, bytes);
    BitWriter bits;
    code_picture([&](size_t code, bool is_ac, int symbol, int value, int size) {
      (is_ac ? ac : dc)[code].write(bits, symbol, value_bits(value, size), size);
    });
    for (const uint8_t value : bits.finish()) {
      bytes_.push_back(value);
      if (value == 0xff) bytes_.push_back(0);  // lest it look like a marker
    }
  }

  const Coefficients& picture_;
  const Grid& grid_;
  bool has_wide_steps_ = false;
  Bytes bytes_;
};

}  // namespace

std::vector<uint8_t> unpack(std::span<const uint8_t> record) {
  const Coefficients picture = read_coefficients(record);
  return JpegWriter(picture).write();
}

}  // namespace ddltrain::image
