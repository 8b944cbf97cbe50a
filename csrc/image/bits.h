// Reading and writing bits, the first in the highest place of a byte as JPEG has them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace ddltrain::image {

[[gnu::always_inline]] inline uint64_t load_big_endian(const uint8_t* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
}

// Reads zeros behind the end, and tells that it did.
class BitReader {
 public:
  explicit BitReader(std::span<const uint8_t> bytes, uint64_t position = 0)
      : bytes_(bytes), position_(position) {}

  // The next 16 bits.
  uint32_t peek() const { return static_cast<uint32_t>(window() << (position_ % 8) >> 48); }
  void skip(int count) { position_ += static_cast<uint64_t>(count); }
  // The next `count` <= 16 bits, as a number.
  int take(int count) {
    const int value = static_cast<int>(peek() >> (16 - count));
    skip(count);
    return value;
  }
  uint64_t position() const { return position_; }
  bool is_past_end() const { return position_ > bytes_.size() * 8; }

 private:
  uint64_t window() const {
    const uint64_t byte = position_ / 8;
    if (byte + sizeof(uint64_t) <= bytes_.size()) return load_big_endian(&bytes_[byte]);
    uint8_t rest[sizeof(uint64_t)] = {};
    if (byte < bytes_.size()) std::memcpy(rest, &bytes_[byte], bytes_.size() - byte);
    return load_big_endian(rest);
  }

  std::span<const uint8_t> bytes_;
  uint64_t position_;
};

class BitWriter {
 public:
  // The `count` <= 32 lowest bits of `bits`; the others must be 0.
  void put(uint32_t bits, int count) {
    pending_ = pending_ << count | bits;
    num_pending_ += count;
    if (num_pending_ >= 32) flush();
  }
  uint64_t num_bits() const { return bytes_.size() * 8 + static_cast<uint64_t>(num_pending_); }
  // All that was written, the last byte filled up with ones.
  std::vector<uint8_t> finish() {
    if (num_pending_ % 8 > 0) put((1u << (8 - num_pending_ % 8)) - 1, 8 - num_pending_ % 8);
    flush();
    return std::move(bytes_);
  }

 private:
  void flush() {
    for (; num_pending_ >= 8; num_pending_ -= 8) {
      bytes_.push_back(static_cast<uint8_t>(pending_ >> (num_pending_ - 8)));
    }
  }

  std::vector<uint8_t> bytes_;
  uint64_t pending_ = 0;
  int num_pending_ = 0;
};

}  // namespace ddltrain::image
