#include "layout.h"

namespace ddltrain::image {

namespace {

constexpr size_t layout_bytes = 10;  // before the quantisation tables
enum Flag : uint8_t { wide_steps = 1, own_codes = 2, wide_index = 4 };
constexpr int all_flags = wide_steps | own_codes | wide_index;
constexpr int bits_per_table = 2;  // of the byte that tells the quantisation table of each plane

class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> rest) : rest_(rest) {}
  std::span<const uint8_t> take(size_t count) {
    if (count > rest_.size()) throw CorruptRecord("the record is cut off");
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::span<const uint8_t> rest() const { return rest_; }

 private:
  std::span<const uint8_t> rest_;
};

void read_code(Bytes& bytes, int max_bits, HuffmanTable& table) {
  table.counts = {};
  size_t count = 0;
  const auto counts = bytes.take(static_cast<size_t>(max_bits));
  for (size_t i = 0; i < counts.size(); ++i) count += table.counts[i] = counts[i];
  const auto symbols = bytes.take(count);
  table.symbols.assign(symbols.begin(), symbols.end());
  if (!is_code(table)) throw CorruptRecord("a code of the record is damaged");
}

void write_code(std::vector<uint8_t>& bytes, int max_bits, const HuffmanTable& table) {
  bytes.insert(bytes.end(), table.counts.begin(), table.counts.begin() + max_bits);
  bytes.insert(bytes.end(), table.symbols.begin(), table.symbols.end());
}

QuantTable read_quant(Bytes& bytes, bool is_wide) {
  QuantTable table;
  const auto steps = bytes.take(is_wide ? 2 * table.size() : table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint16_t>(is_wide ? steps[2 * i] | steps[2 * i + 1] << 8 : steps[i]);
  }
  if (std::ranges::min(table) == 0) throw CorruptRecord("a quantisation table of the record is damaged");
  return table;
}

}  // namespace

void read_layout(std::span<const uint8_t> record, Layout& layout) {
  const Header header = read_header(record);
  if (header.kind != Kind::jpeg) throw CorruptRecord("the record is no JPEG picture");
  layout.grid = {header.width, header.height, header.num_planes, header.h_samp[0], header.v_samp[0]};
  Bytes bytes(record);
  const auto head = bytes.take(layout_bytes);
  const int flags = head[8], tables = head[9];
  layout.run_mcus = head[7];
  if (layout.run_mcus == 0 || flags > all_flags) throw CorruptRecord("the record's header is damaged");
  std::array<QuantTable, max_planes> quant;
  int num_tables = 0;
  for (int plane = 0; plane < header.num_planes; ++plane) {
    const int table = tables >> (plane * bits_per_table) & 3;
    if (table > num_tables) throw CorruptRecord("the record's header is damaged");
    if (table == num_tables) quant[static_cast<size_t>(num_tables++)] = read_quant(bytes, flags & wide_steps);
    layout.quant[static_cast<size_t>(plane)] = quant[static_cast<size_t>(table)];
  }
  layout.has_own_codes = flags & own_codes;
  layout.has_wide_index = flags & wide_index;
  if (layout.has_own_codes) {
    for (int code = 0; code <= code_of(header.num_planes - 1); ++code) {
      read_code(bytes, max_dc_code_bits, layout.codes.dc[static_cast<size_t>(code)]);
      read_code(bytes, max_ac_code_bits, layout.codes.ac[static_cast<size_t>(code)]);
    }
  }
  layout.index = bytes.take(static_cast<size_t>(layout.num_runs()) * (layout.has_wide_index ? 4 : 2));
  layout.scan = bytes.rest();
  if (layout.grid.num_blocks() > std::ssize(layout.scan) * 4) {  // of at least two bits each
    throw CorruptRecord("the record is cut off");
  }
}

std::vector<uint8_t> write_layout(const Layout& layout) {
  const Grid& grid = layout.grid;
  std::vector<QuantTable> quant;
  int tables = 0;
  bool has_wide_steps = false;
  for (int plane = 0; plane < grid.num_planes; ++plane) {
    const QuantTable& table = layout.quant[static_cast<size_t>(plane)];
    const auto place = std::ranges::find(quant, table) - quant.begin();
    if (place == std::ssize(quant)) quant.push_back(table);
    tables |= static_cast<int>(place) << (plane * bits_per_table);
    has_wide_steps |= std::ranges::max(table) > UINT8_MAX;
  }
  const int flags = (has_wide_steps ? wide_steps : 0) | (layout.has_own_codes ? own_codes : 0) |
                    (layout.has_wide_index ? wide_index : 0);
  std::vector<uint8_t> bytes;
  for (const int value :
       {static_cast<int>(Kind::jpeg), grid.width, grid.width >> 8, grid.height, grid.height >> 8,
        grid.num_planes, grid.h_samp << 4 | grid.v_samp, layout.run_mcus, flags, tables}) {
    bytes.push_back(static_cast<uint8_t>(value));
  }
  for (const QuantTable& table : quant) {
    for (const uint16_t step : table) {
      bytes.push_back(static_cast<uint8_t>(step));
      if (has_wide_steps) bytes.push_back(static_cast<uint8_t>(step >> 8));
    }
  }
  if (layout.has_own_codes) {
    for (size_t code = 0; code <= static_cast<size_t>(code_of(grid.num_planes - 1)); ++code) {
      write_code(bytes, max_dc_code_bits, layout.codes.dc[code]);
      write_code(bytes, max_ac_code_bits, layout.codes.ac[code]);
    }
  }
  return bytes;
}

}  // namespace ddltrain::image
