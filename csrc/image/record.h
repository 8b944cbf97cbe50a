// A record: one picture as bytes that describe themselves, from which any window can be decoded.
//
//   pixels: 1 | width u16 | height u16 | planes u8 | samples, row by row, interleaved
//   jpeg:   2 | width u16 | height u16 | planes u8 | sampling u8 | run_mcus u8 | flags u8 | tables u8
//           | quantisation tables | own Huffman tables | bits of each run, u16 or u32 | runs
//
// Numbers are little endian. A run is up to `run_mcus` MCUs of one MCU row, coded as a baseline JPEG scan is,
// but without stuffing and with its DC predictions starting at 0, so that it can be decoded by itself. Runs
// follow one another without gaps, bit by bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace ddltrain::image {

// A record, or the code of a picture in a file, is damaged.
struct CorruptRecord : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Not an 8-bit sequential JPEG, gray or YCbCr; says why.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr int max_planes = 3;
constexpr int64_t max_pixels = 100'000'000;
constexpr size_t pixels_header_bytes = 6;

enum class Kind : uint8_t { pixels = 1, jpeg = 2 };

struct Header {
  Kind kind;
  int width, height;
  int num_planes;  // 1 is gray. 3 is Y, Cb, Cr (jpeg) or interleaved red, green, blue (pixels).
  std::array<int, max_planes> h_samp, v_samp;  // as in JPEG: those of chroma are 1, those of luma 1, 2 or 4
};

// Checks nothing but the header itself. Throws CorruptRecord.
Header read_header(std::span<const uint8_t> record);

// The samples of a `pixels` record: height x width x num_planes. Throws CorruptRecord.
std::span<const uint8_t> pixels_of(std::span<const uint8_t> record);

}  // namespace ddltrain::image
