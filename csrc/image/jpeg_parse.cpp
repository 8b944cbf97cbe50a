#include "jpeg_parse.h"

#include <optional>
#include <string>

#include "jpeg_scan.h"

namespace ddltrain::image {

namespace {

enum Marker : uint8_t {
  sof0 = 0xc0,
  sof1 = 0xc1,
  dht = 0xc4,
  dac = 0xcc,
  sof15 = 0xcf,
  rst0 = 0xd0,
  soi = 0xd8,
  eoi = 0xd9,
  sos = 0xda,
  dqt = 0xdb,
  dnl = 0xdc,
  dri = 0xdd,
  dhp = 0xde,
  app0 = 0xe0,
  app14 = 0xee,
  tem = 0x01,
};

constexpr size_t num_tables = 4;
constexpr int max_blocks_per_mcu = 10;

// The bytes of a marker segment, one after another.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> rest) : rest_(rest) {}
  size_t size() const { return rest_.size(); }
  bool begins_with(std::string_view text) const {
    return size() >= text.size() && std::equal(text.begin(), text.end(), rest_.begin());
  }
  int u8() { return take(1)[0]; }
  int u16() {
    const auto bytes = take(2);
    return bytes[0] << 8 | bytes[1];
  }
  std::span<const uint8_t> take(size_t count) {
    if (count > size()) throw Unsupported("a marker segment is cut off");
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

 private:
  std::span<const uint8_t> rest_;
};

const char* name_of_coding(int marker) {
  switch (marker) {
    case 0xc2:
      return "progressive";
    case 0xc3:
      return "lossless";
    default:
      return marker < 0xc9 ? "hierarchical" : "arithmetic-coded";
  }
}

class Parser {
 public:
  explicit Parser(std::span<const uint8_t> file) : rest_(file) {}

  Coefficients parse() {
    if (rest_.size() < 2 || rest_[0] != 0xff || rest_[1] != soi) throw Unsupported("not a JPEG file");
    rest_ = rest_.subspan(2);
    while (!is_complete()) {
      const int marker = next_marker();
      if (marker == eoi) throw Unsupported("the file ends before the picture is complete");
      if (marker == tem || (marker >= rst0 && marker < soi)) continue;  // have no segment
      const size_t length = static_cast<size_t>(Bytes(rest_).u16());
      if (length < 2 || length > rest_.size()) throw Unsupported("a marker segment is cut off");
      Bytes segment(rest_.subspan(2, length - 2));
      rest_ = rest_.subspan(length);
      read_segment(marker, segment);
    }
    return result();
  }

 private:
  bool is_complete() const {
    return !frame_.components.empty() && num_planes_read_ == frame_.components.size();
  }

  int next_marker() {
    // Like libjpeg, skips what is not a marker: some writers leave stray bytes between segments.
    while (rest_.size() >= 2 && (rest_[0] != 0xff || rest_[1] == 0xff || rest_[1] == 0)) {
      rest_ = rest_.subspan(1);
    }
    if (rest_.size() < 2) throw Unsupported("the file ends before the picture is complete");
    const int marker = rest_[1];
    rest_ = rest_.subspan(2);
    return marker;
  }

  void read_segment(int marker, Bytes segment) {
    switch (marker) {
      case dqt:
        return read_quant_tables(segment);
      case dht:
        return read_huffman_tables(segment);
      case dri:
        restart_interval_ = segment.u16();
        return;
      case sos:
        return read_scan_header(segment);
      case app0:
        has_jfif_ |= segment.size() >= 14 && segment.begins_with(std::string_view("JFIF\0", 5));
        return;
      case app14:
        if (segment.size() >= 12 && segment.begins_with("Adobe")) adobe_transform_ = segment.take(12)[11];
        return;
      case sof0:
      case sof1:
        return read_frame(segment);
      case dac:
      case dnl:
      case dhp:
      case soi:
        throw Unsupported("it has a marker that baseline JPEG does not know");
      default:
        if (marker > sof1 && marker <= sof15) {
          throw Unsupported(std::string(name_of_coding(marker)) + " JPEG");
        }
    }
  }

  void read_quant_tables(Bytes& segment) {
    while (segment.size() > 0) {
      const int head = segment.u8();
      if (head >> 4 > 1 || (head & 15) >= static_cast<int>(num_tables)) {
        throw Unsupported("a quantisation table is damaged");
      }
      QuantTable table;
      for (uint16_t& step : table) {
        step = static_cast<uint16_t>(head >> 4 ? segment.u16() : segment.u8());
        if (step == 0) throw Unsupported("a quantisation table is damaged");
      }
      quant_[static_cast<size_t>(head & 15)] = table;
    }
  }

  void read_huffman_tables(Bytes& segment) {
    while (segment.size() > 0) {
      const int head = segment.u8();
      if (head >> 4 > 1 || (head & 15) >= static_cast<int>(num_tables)) {
        throw Unsupported("a Huffman table is damaged");
      }
      HuffmanTable table;
      size_t count = 0;
      for (uint8_t& codes : table.counts) count += codes = static_cast<uint8_t>(segment.u8());
      const auto symbols = segment.take(count);
      table.symbols.assign(symbols.begin(), symbols.end());
      if (!is_code(table)) throw Unsupported("a Huffman table is damaged");
      (head >> 4 ? ac_ : dc_)[static_cast<size_t>(head & 15)].emplace(std::move(table));
    }
  }

  void read_frame(Bytes& segment) {
    if (!frame_.components.empty()) throw Unsupported("it has more than one frame");
    if (const int bits = segment.u8(); bits != 8) throw Unsupported(std::to_string(bits) + "-bit JPEG");
    frame_.height = segment.u16();
    frame_.width = segment.u16();
    const int count = segment.u8();
    if (count != 1 && count != 3) throw Unsupported(std::to_string(count) + " color components");
    if (frame_.width == 0 || frame_.height == 0) throw Unsupported("its size is 0");
    if (int64_t{frame_.width} * frame_.height > max_pixels) throw Unsupported("it is too large");
    for (int i = 0; i < count; ++i) {
      const int id = segment.u8(), sampling = segment.u8(), table = segment.u8();
      frame_.components.push_back({id, sampling >> 4, sampling & 15, table});
    }
    check_sampling();
  }

  void check_sampling() {
    int blocks = 0;
    for (Component& component : frame_.components) {
      if (component.h_samp < 1 || component.h_samp > 4 || component.v_samp < 1 || component.v_samp > 4) {
        throw Unsupported("its sampling is damaged");
      }
      if (frame_.components.size() == 1) component.h_samp = component.v_samp = 1;  // as good as any other
      frame_.h_max = std::max(frame_.h_max, component.h_samp);
      frame_.v_max = std::max(frame_.v_max, component.v_samp);
      blocks += component.h_samp * component.v_samp;
    }
    if (blocks > max_blocks_per_mcu) throw Unsupported("its sampling is damaged");
    const Component &luma = frame_.components.front(), &chroma = frame_.components.back();
    const auto is_usual = [](int whole, int part) {
      return whole % part == 0 && (whole / part == 1 || whole / part == 2 || whole / part == 4);
    };
    if (!is_usual(luma.h_samp, chroma.h_samp) || !is_usual(luma.v_samp, chroma.v_samp) ||
        frame_.components[frame_.components.size() / 2].h_samp != chroma.h_samp ||
        frame_.components[frame_.components.size() / 2].v_samp != chroma.v_samp) {
      throw Unsupported("unusual sampling of its planes");
    }
  }

  // By libjpeg's rules for files of three components.
  bool is_ycbcr() const {
    if (has_jfif_) return true;
    if (adobe_transform_) return *adobe_transform_ != 0;
    const auto& components = frame_.components;
    return components[0].id != 'R' || components[1].id != 'G' || components[2].id != 'B';
  }

  void read_scan_header(Bytes& segment) {
    if (frame_.components.empty()) throw Unsupported("it has a scan before its frame");
    if (frame_.components.size() == 3 && !is_ycbcr()) throw Unsupported("RGB JPEG");
    if (num_planes_read_ == 0) allocate();
    Scan scan;
    scan.restart_interval = restart_interval_;
    const int count = segment.u8();
    for (int i = 0; i < count; ++i) {
      const int id = segment.u8(), tables = segment.u8();
      scan.parts.push_back(scan_part(id, tables));
    }
    if (count == 0 || segment.u8() != 0 || segment.u8() != 63 || segment.u8() != 0) {
      throw Unsupported("a scan header is damaged");
    }
    num_planes_read_ += scan.parts.size();
    rest_ = rest_.subspan(read_scan(rest_, frame_, scan, planes_));
  }

  Scan::Part scan_part(int id, int tables) {
    const size_t dc = static_cast<size_t>(tables >> 4), ac = static_cast<size_t>(tables & 15);
    for (size_t i = 0; i < frame_.components.size(); ++i) {
      const Component& component = frame_.components[i];
      if (component.id != id) continue;
      if (is_read_[i]) throw Unsupported("two scans have the same plane");
      is_read_[i] = true;
      if (dc >= num_tables || ac >= num_tables || !dc_[dc] || !ac_[ac]) {
        throw Unsupported("a Huffman table is missing");
      }
      const auto quant = static_cast<size_t>(component.quant_table);
      if (quant >= num_tables || !quant_[quant]) throw Unsupported("a quantisation table is missing");
      plane_quant_[i] = *quant_[quant];
      return {static_cast<int>(i), HuffmanReader(*dc_[dc]), HuffmanReader(*ac_[ac])};
    }
    throw Unsupported("a scan header is damaged");
  }

  // Takes memory only where the file is long enough for so many blocks of at least two bits.
  void allocate() {
    int64_t blocks = 0;
    for (const Component& component : frame_.components) {
      blocks += int64_t{ceil_div(ceil_div(frame_.width * component.h_samp, frame_.h_max), block_side)} *
                ceil_div(ceil_div(frame_.height * component.v_samp, frame_.v_max), block_side);
    }
    if (blocks > static_cast<int64_t>(rest_.size()) * 4) throw CorruptRecord("the coded picture is cut off");
    for (size_t i = 0; i < frame_.components.size(); ++i) {
      planes_[i].resize(frame_.mcus_wide() * frame_.components[i].h_samp,
                        frame_.mcus_high() * frame_.components[i].v_samp);
    }
  }

  Coefficients result() {
    const Component &luma = frame_.components.front(), &chroma = frame_.components.back();
    const Grid grid = {frame_.width, frame_.height, static_cast<int>(frame_.components.size()),
                       luma.h_samp / chroma.h_samp, luma.v_samp / chroma.v_samp};
    return {grid, plane_quant_, std::move(planes_)};
  }

  std::span<const uint8_t> rest_;
  Frame frame_;
  int restart_interval_ = 0;
  bool has_jfif_ = false;
  std::optional<int> adobe_transform_;
  std::array<std::optional<QuantTable>, num_tables> quant_;
  std::array<std::optional<HuffmanTable>, num_tables> dc_, ac_;
  std::array<PlaneCoefficients, max_planes> planes_;
  std::array<QuantTable, max_planes> plane_quant_ = {};
  std::array<bool, max_planes> is_read_ = {};
  size_t num_planes_read_ = 0;
};

}  // namespace

Coefficients parse_jpeg(std::span<const uint8_t> file) { return Parser(file).parse(); }

}  // namespace ddltrain::image
