// Making records, and JPEG files of them again.
#pragma once

#include <vector>

#include "record.h"

namespace ddltrain::image {

// A record with exactly the coefficients of a JPEG file. Throws Unsupported, with the reason, for what is not
// an 8-bit sequential JPEG, gray or YCbCr of usual sampling; CorruptRecord where the picture's code is
// damaged or cut off.
std::vector<uint8_t> pack_jpeg(std::span<const uint8_t> file);

// A record of samples as they are: height x width x num_planes (1 or 3), sides of 1 to 65535.
std::vector<uint8_t> pack_pixels(std::span<const uint8_t> pixels, int width, int height, int num_planes);

// A JPEG file with the coefficients of a `jpeg` record. Throws CorruptRecord.
std::vector<uint8_t> unpack(std::span<const uint8_t> record);

}  // namespace ddltrain::image
