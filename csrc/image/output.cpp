#include "output.h"

#include <bit>
#include <cstring>

#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddltrain::image {

namespace {

inline void store(float value, float* to) { *to = value; }

// To the nearest bfloat16, halves to even. Levels are finite.
inline void store(float value, uint16_t* to) {
  const auto bits = std::bit_cast<uint32_t>(value);
  *to = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

// Values from the `first` on.
template <typename T>
void ImageWriter::normalize_portable(const uint8_t* levels, size_t first, size_t count, const Scale& scale,
                                     T* values) {
  for (size_t i = first; i < count; ++i) {
    const size_t k = i % group;
    store((static_cast<float>(levels[i]) - scale.offset[k]) * scale.factor[k], values + i);
  }
}

#if defined(__x86_64__)

namespace {

[[gnu::target("avx2"), gnu::always_inline]] inline __m256 normalized(const uint8_t* levels, __m256 offset,
                                                                     __m256 factor) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels));
  const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  return _mm256_mul_ps(_mm256_sub_ps(values, offset), factor);
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store(__m256 values, float* to) {
  _mm256_storeu_ps(to, values);
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store(__m256 values, uint16_t* to) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i words = _mm256_srli_epi32(sum, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

}  // namespace

template <typename T>
[[gnu::target("avx2")]] void ImageWriter::normalize_avx2(const uint8_t* levels, size_t count,
                                                         const Scale& scale, T* values) {
  __m256 offset[3], factor[3];
  for (size_t k = 0; k < 3; ++k) {
    offset[k] = _mm256_loadu_ps(&scale.offset[8 * k]);
    factor[k] = _mm256_loadu_ps(&scale.factor[8 * k]);
  }
  size_t i = 0;
  for (; i + group <= count; i += group) {
    store(normalized(levels + i, offset[0], factor[0]), values + i);
    store(normalized(levels + i + 8, offset[1], factor[1]), values + i + 8);
    store(normalized(levels + i + 16, offset[2], factor[2]), values + i + 16);
  }
  normalize_portable(levels, i, count, scale, values);
}

#endif

template <typename T>
void ImageWriter::normalize(const uint8_t* levels, size_t count, const Scale& scale, T* values) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return normalize_avx2(levels, count, scale, values);
#endif
  normalize_portable(levels, 0, count, scale, values);
}

size_t OutputForm::image_bytes() const {
  const size_t value_bytes = type == OutputType::uint8 ? 1 : type == OutputType::bfloat16 ? 2 : 4;
  return 3 * static_cast<size_t>(size) * static_cast<size_t>(size) * value_bytes;
}

void ImageWriter::start(const OutputForm& form, void* image) {
  form_ = form;
  image_ = image;
  pixels_.resize(3 * static_cast<size_t>(form.size));
  if (form.type == OutputType::uint8) return;
  for (size_t channel = 0; channel < scales_.size(); ++channel) {
    for (size_t k = 0; k < group; ++k) {
      const size_t from = form.channels_last ? k % 3 : channel;
      scales_[channel].offset[k] = form.offset[from];
      scales_[channel].factor[k] = form.factor[from];
    }
  }
}

void ImageWriter::write_row(RgbRow row, int y) {
  const auto size = static_cast<size_t>(form_.size), before = static_cast<size_t>(y) * size;
  if (!form_.channels_last) {
    write_levels(row.red, size, scales_[0], before);
    write_levels(row.green, size, scales_[1], size * size + before);
    write_levels(row.blue, size, scales_[2], 2 * size * size + before);
  } else if (form_.type == OutputType::uint8) {
    interleave(row, form_.size, static_cast<uint8_t*>(image_) + 3 * before);
  } else {
    interleave(row, form_.size, pixels_.data());
    write_levels(pixels_.data(), 3 * size, scales_[0], 3 * before);
  }
}

// Writes values of the image from the `first` on.
void ImageWriter::write_levels(const uint8_t* levels, size_t count, const Scale& scale, size_t first) {
  switch (form_.type) {
    case OutputType::uint8:
      std::memcpy(static_cast<uint8_t*>(image_) + first, levels, count);
      break;
    case OutputType::float32:
      normalize(levels, count, scale, static_cast<float*>(image_) + first);
      break;
    case OutputType::bfloat16:
      normalize(levels, count, scale, static_cast<uint16_t*>(image_) + first);
      break;
  }
}

}  // namespace ddltrain::image
