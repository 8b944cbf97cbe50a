#include "record.h"

namespace ddltrain::image {

namespace {

constexpr size_t sampling_at = 6;

bool is_factor(int samp) { return samp == 1 || samp == 2 || samp == 4; }

}  // namespace

Header read_header(std::span<const uint8_t> record) {
  if (record.size() <= pixels_header_bytes) throw CorruptRecord("the record is too short");
  const auto kind = static_cast<Kind>(record[0]);
  if (kind != Kind::pixels && kind != Kind::jpeg) throw CorruptRecord("the record is of no known kind");
  Header header = {kind,     record[1] | record[2] << 8, record[3] | record[4] << 8, record[5], {1, 1, 1},
                   {1, 1, 1}};
  if (header.width == 0 || header.height == 0 || (header.num_planes != 1 && header.num_planes != 3) ||
      int64_t{header.width} * header.height > max_pixels) {
    throw CorruptRecord("the record's header is damaged");
  }
  if (kind == Kind::jpeg) {
    header.h_samp[0] = record[sampling_at] >> 4;
    header.v_samp[0] = record[sampling_at] & 15;
    if (!is_factor(header.h_samp[0]) || !is_factor(header.v_samp[0]) ||
        header.h_samp[0] * header.v_samp[0] > 8 ||
        (header.num_planes == 1 && header.h_samp[0] * header.v_samp[0] > 1)) {
      throw CorruptRecord("the record's header is damaged");
    }
  }
  return header;
}

std::span<const uint8_t> pixels_of(std::span<const uint8_t> record) {
  const Header header = read_header(record);
  const size_t count = static_cast<size_t>(header.width) * static_cast<size_t>(header.height) *
                       static_cast<size_t>(header.num_planes);
  if (header.kind != Kind::pixels || record.size() != pixels_header_bytes + count) {
    throw CorruptRecord("the record does not have the pixels that its header says");
  }
  return record.subspan(pixels_header_bytes);
}

}  // namespace ddltrain::image
