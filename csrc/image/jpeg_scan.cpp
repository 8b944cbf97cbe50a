#include "jpeg_scan.h"

#include "block_code.h"

namespace ddltrain::image {

namespace {

constexpr int marker_start = 0xff, first_restart = 0xd0, num_restarts = 8;

// What lies between two markers of the scan, without stuffing.
using Segment = std::vector<uint8_t>;

// Takes one segment off `bytes` from `at` on; stops at a marker, whose place it leaves in `at`, or at the
// end.
Segment take_segment(std::span<const uint8_t> bytes, size_t& at) {
  Segment segment;
  while (at < bytes.size()) {
    const uint8_t byte = bytes[at];
    if (byte == marker_start) {
      if (at + 1 == bytes.size() || bytes[at + 1] != 0) break;
      ++at;
    }
    segment.push_back(byte);
    ++at;
  }
  return segment;
}

class ScanReader {
 public:
  ScanReader(const Frame& frame, const Scan& scan, std::array<PlaneCoefficients, max_planes>& planes)
      : frame_(frame), scan_(scan), planes_(planes) {
    if (scan.parts.size() == 1) {  // its MCUs are single blocks, none of them outside of the picture
      const Component& component = component_of(scan.parts[0]);
      mcus_wide_ = ceil_div(ceil_div(frame.width * component.h_samp, frame.h_max), block_side);
      mcus_high_ = ceil_div(ceil_div(frame.height * component.v_samp, frame.v_max), block_side);
    } else {
      mcus_wide_ = frame.mcus_wide();
      mcus_high_ = frame.mcus_high();
    }
  }

  int64_t num_mcus() const { return int64_t{mcus_wide_} * mcus_high_; }

  // Reads MCUs first to last - 1, which are all that the segment holds.
  void read(const Segment& segment, int64_t first, int64_t last) {
    BitReader bits(segment);
    predictions_ = {};
    for (int64_t mcu = first; mcu < last; ++mcu) {
      read_mcu(bits, static_cast<int>(mcu % mcus_wide_), static_cast<int>(mcu / mcus_wide_));
      if (bits.is_past_end()) throw CorruptRecord("the coded picture is cut off");
    }
  }

 private:
  const Component& component_of(const Scan::Part& part) const {
    return frame_.components[static_cast<size_t>(part.component)];
  }

  void read_mcu(BitReader& bits, int mcu_x, int mcu_y) {
    const bool is_single = scan_.parts.size() == 1;
    for (const Scan::Part& part : scan_.parts) {
      const int wide = is_single ? 1 : component_of(part).h_samp;
      const int high = is_single ? 1 : component_of(part).v_samp;
      for (int i = 0; i < wide * high; ++i) {
        const auto plane = static_cast<size_t>(part.component);
        int16_t* block = planes_[plane].block(mcu_x * wide + i % wide, mcu_y * high + i / wide);
        if (!read_block(bits, part.dc, part.ac, predictions_[plane], block)) {
          throw CorruptRecord("the coded picture is damaged");
        }
      }
    }
  }

  const Frame& frame_;
  const Scan& scan_;
  std::array<PlaneCoefficients, max_planes>& planes_;
  int mcus_wide_, mcus_high_;
  std::array<int, max_planes> predictions_ = {};
};

}  // namespace

size_t read_scan(std::span<const uint8_t> bytes, const Frame& frame, const Scan& scan,
                 std::array<PlaneCoefficients, max_planes>& planes) {
  ScanReader reader(frame, scan, planes);
  const int64_t num_mcus = reader.num_mcus();
  const int64_t interval = scan.restart_interval > 0 ? scan.restart_interval : num_mcus;
  size_t at = 0;
  for (int64_t first = 0, restart = 0; first < num_mcus; first += interval, ++restart) {
    if (restart > 0) {
      while (at + 1 < bytes.size() && bytes[at + 1] == marker_start) ++at;  // fill bytes
      const auto marker = static_cast<int>(first_restart + (restart - 1) % num_restarts);
      if (at + 1 >= bytes.size()) throw CorruptRecord("the coded picture is cut off");
      if (bytes[at + 1] != marker) throw CorruptRecord("a restart marker is missing");
      at += 2;
    }
    reader.read(take_segment(bytes, at), first, std::min(first + interval, num_mcus));
  }
  return at;
}

}  // namespace ddltrain::image
