// JPEG files: which of them are packed, and what is in them.
#pragma once

#include "coefficients.h"

namespace ddltrain::image {

// The picture of a JPEG file. Throws Unsupported, with the reason, unless it is 8-bit, sequential, Huffman
// coded, gray or YCbCr with the same sampling of both chroma planes; CorruptRecord where its code is damaged
// or cut off.
Coefficients parse_jpeg(std::span<const uint8_t> file);

}  // namespace ddltrain::image
