#include "pack.h"

#include "block_code.h"
#include "jpeg_parse.h"
#include "layout.h"

namespace ddltrain::image {

namespace {

constexpr int bits_per_run = 2048;  // about what a run should have: an index of 1 % of the scan
constexpr double min_gain = 0.02;   // of own codes, which take time to set up

struct CodeHistograms {
  std::array<Histogram, num_codes> dc = {}, ac = {};
};

// Calls visit(code, block, DC difference) for the blocks of a run.
template <class Visit>
void for_each_coded_block(const Coefficients& picture, int run_mcus, int run, Visit&& visit) {
  const Grid& grid = picture.grid;
  const int runs_wide = grid.runs_wide(run_mcus);
  const int first = run % runs_wide * run_mcus;
  std::array<int, max_planes> predictions = {};
  for_each_block(grid, run / runs_wide, first, std::min(first + run_mcus, grid.mcus_wide()),
                 [&](int plane, int x, int y) {
                   const auto p = static_cast<size_t>(plane);
                   const int16_t* block = picture.planes[p].block(x, y);
                   visit(static_cast<size_t>(code_of(plane)), block, block[0] - predictions[p]);
                   predictions[p] = block[0];
                 });
}

// The symbols of coefficients but the DC ones, which do not depend on how runs are cut.
void count_ac_symbols(const Coefficients& picture, CodeHistograms& histograms) {
  for (int row = 0; row < picture.grid.mcus_high(); ++row) {
    for_each_block(picture.grid, row, 0, picture.grid.mcus_wide(), [&](int plane, int x, int y) {
      Histogram& histogram = histograms.ac[static_cast<size_t>(code_of(plane))];
      code_block(picture.planes[static_cast<size_t>(plane)].block(x, y), 0,
                 [&](bool is_ac, int symbol, int, int) {
                   if (is_ac) ++histogram[static_cast<size_t>(symbol)];
                 });
    });
  }
}

void count_dc_symbols(const Coefficients& picture, const Layout& layout, CodeHistograms& histograms) {
  for (int run = 0; run < layout.num_runs(); ++run) {
    for_each_coded_block(picture, layout.run_mcus, run, [&](size_t code, const int16_t*, int difference) {
      ++histograms.dc[code][static_cast<size_t>(size_of(difference))];
    });
  }
}

// Bits of all symbols, with the values behind them.
uint64_t coded_bits(const Histogram& histogram, const HuffmanTable& table) {
  const HuffmanWriter writer(table);
  uint64_t bits = 0;
  for (int symbol = 0; symbol < num_symbols; ++symbol) {
    bits +=
        histogram[static_cast<size_t>(symbol)] * static_cast<uint64_t>(writer.length(symbol) + (symbol & 15));
  }
  return bits;
}

uint64_t coded_bits(const CodeHistograms& histograms, const Codes& codes) {
  uint64_t bits = 0;
  for (size_t code = 0; code < num_codes; ++code) {
    bits += coded_bits(histograms.dc[code], codes.dc[code]) + coded_bits(histograms.ac[code], codes.ac[code]);
  }
  return bits;
}

Codes optimal_codes(const CodeHistograms& histograms) {
  Codes codes;
  for (size_t code = 0; code < num_codes; ++code) {
    codes.dc[code] = optimal_table(histograms.dc[code], max_dc_code_bits);
    codes.ac[code] = optimal_table(histograms.ac[code], max_ac_code_bits);
  }
  return codes;
}

void check_values(const Coefficients& picture) {
  for (int plane = 0; plane < picture.grid.num_planes; ++plane) {
    const auto& values = picture.planes[static_cast<size_t>(plane)].values;
    for (size_t i = 0; i < values.size(); i += block_size) {
      if (values[i] < min_dc || values[i] > max_dc) throw Unsupported("a DC coefficient is out of range");
    }
  }
}

// Sets what depends on how often symbols come: how runs are cut, and the codes.
void choose_codes(const Coefficients& picture, Layout& layout) {
  CodeHistograms histograms;
  count_ac_symbols(picture, histograms);
  const uint64_t bits = coded_bits(histograms, default_codes());
  const int64_t num_mcus = int64_t{layout.grid.mcus_wide()} * layout.grid.mcus_high();
  layout.run_mcus = static_cast<int>(std::clamp<int64_t>(
      bits_per_run * num_mcus / std::max(static_cast<int64_t>(bits), int64_t{1}), 1, max_run_mcus));
  count_dc_symbols(picture, layout, histograms);
  layout.codes = optimal_codes(histograms);
  const auto bytes_with = [&](bool has_own_codes) {
    layout.has_own_codes = has_own_codes;
    return static_cast<double>(write_layout(layout).size() + coded_bits(histograms, layout.used_codes()) / 8);
  };
  const double own = bytes_with(true), usual = bytes_with(false);
  layout.has_own_codes = own < (1 - min_gain) * usual;
}

}  // namespace

std::vector<uint8_t> pack_jpeg(std::span<const uint8_t> file) {
  const Coefficients picture = parse_jpeg(file);
  check_values(picture);
  Layout layout;
  layout.grid = picture.grid;
  layout.quant = picture.quant;
  choose_codes(picture, layout);
  std::array<HuffmanWriter, num_codes> dc, ac;
  for (size_t code = 0; code < num_codes; ++code) {
    dc[code] = HuffmanWriter(layout.used_codes().dc[code]);
    ac[code] = HuffmanWriter(layout.used_codes().ac[code]);
  }
  BitWriter bits;
  std::vector<uint64_t> ends;
  for (int run = 0; run < layout.num_runs(); ++run) {
    for_each_coded_block(picture, layout.run_mcus, run,
                         [&](size_t code, const int16_t* block, int difference) {
                           code_block(block, difference, [&](bool is_ac, int symbol, int value, int size) {
                             (is_ac ? ac : dc)[code].write(bits, symbol, value_bits(value, size), size);
                           });
                         });
    const uint64_t begin = ends.empty() ? 0 : ends.back();
    ends.push_back(bits.num_bits());
    layout.has_wide_index |= ends.back() - begin > UINT16_MAX;
  }
  std::vector<uint8_t> record = write_layout(layout);
  uint64_t begin = 0;
  for (const uint64_t end : ends) {
    for (int byte = 0; byte < (layout.has_wide_index ? 4 : 2); ++byte) {
      record.push_back(static_cast<uint8_t>((end - begin) >> (8 * byte)));
    }
    begin = end;
  }
  const std::vector<uint8_t> scan = bits.finish();
  record.insert(record.end(), scan.begin(), scan.end());
  return record;
}

std::vector<uint8_t> pack_pixels(std::span<const uint8_t> pixels, int width, int height, int num_planes) {
  const auto is_side = [](int side) { return 1 <= side && side <= UINT16_MAX; };
  if (!is_side(width) || !is_side(height) || int64_t{width} * height > max_pixels) {
    throw Unsupported("its size cannot be packed");
  }
  if ((num_planes != 1 && num_planes != 3) || std::ssize(pixels) != int64_t{width} * height * num_planes) {
    throw std::invalid_argument("the pixels do not have the size that they are said to have");
  }
  std::vector<uint8_t> record;
  record.reserve(pixels_header_bytes + pixels.size());
  for (const int value :
       {static_cast<int>(Kind::pixels), width, width >> 8, height, height >> 8, num_planes}) {
    record.push_back(static_cast<uint8_t>(value));
  }
  record.insert(record.end(), pixels.begin(), pixels.end());
  return record;
}

}  // namespace ddltrain::image
