#include "color.h"

#include <algorithm>
#include <array>

#include "isa.h"
#include "weights.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddltrain::image {

namespace {

constexpr int color_bits = 16;

constexpr int fixed(double factor) { return static_cast<int>(factor * (1 << color_bits) + 0.5); }

[[gnu::always_inline]] inline uint8_t clipped(int level) {
  return static_cast<uint8_t>(std::clamp(level, 0, 255));
}

constexpr int half_color = 1 << (color_bits - 1);

void exact_rgb_portable(const uint8_t* luma, const uint8_t* blueness, const uint8_t* redness, int count,
                        RgbRow result) {
  for (int i = 0; i < count; ++i) {
    const int cb = blueness[i] - 128, cr = redness[i] - 128;
    result.red[i] = clipped(luma[i] + ((fixed(1.40200) * cr + half_color) >> color_bits));
    result.green[i] =
        clipped(luma[i] + ((-fixed(0.34414) * cb - fixed(0.71414) * cr + half_color) >> color_bits));
    result.blue[i] = clipped(luma[i] + ((fixed(1.77200) * cb + half_color) >> color_bits));
  }
}

// Products of 16-bit numbers and factors below 1, in units of 2^-15.
constexpr int16_t factor15(double factor) { return static_cast<int16_t>(factor * (1 << 15) + 0.5); }
constexpr int16_t red_of_cr = factor15(0.402), green_of_cb = factor15(0.344136),
                  green_of_cr = factor15(0.714136), blue_of_cb = factor15(0.772);
constexpr int16_t zero_chroma = 128 << fraction_bits, half_level = 1 << (fraction_bits - 1);

int16_t saturated(int value) { return static_cast<int16_t>(std::clamp(value, INT16_MIN, INT16_MAX)); }

int16_t product(int16_t value, int16_t factor) {
  return static_cast<int16_t>((value * factor + (1 << 14)) >> 15);
}

uint8_t level(int16_t sample) { return clipped(saturated(sample + half_level) >> fraction_bits); }

// Sums saturate in the order in which the AVX2 kernel adds, which never loses what a later term takes back.
void fast_rgb_portable(const int16_t* luma, const int16_t* blueness, const int16_t* redness, int count,
                       RgbRow result) {
  for (int i = 0; i < count; ++i) {
    const auto cb = static_cast<int16_t>(blueness[i] - zero_chroma);
    const auto cr = static_cast<int16_t>(redness[i] - zero_chroma);
    result.red[i] = level(saturated(saturated(luma[i] + cr) + product(cr, red_of_cr)));
    result.green[i] = level(saturated(luma[i] - (product(cb, green_of_cb) + product(cr, green_of_cr))));
    result.blue[i] = level(saturated(saturated(luma[i] + cb) + product(cb, blue_of_cb)));
  }
}

struct Split {
  [[gnu::always_inline]] static void run(const uint8_t* pixels, int count, RgbRow result) {
    uint8_t* __restrict red = result.red, * __restrict green = result.green, * __restrict blue = result.blue;
    for (int i = 0; i < count; ++i) {
      red[i] = pixels[3 * i];
      green[i] = pixels[3 * i + 1];
      blue[i] = pixels[3 * i + 2];
    }
  }
};

void interleave_portable(RgbRow row, int first, int count, uint8_t* pixels) {
  for (int i = first; i < count; ++i) {
    pixels[3 * i] = row.red[i];
    pixels[3 * i + 1] = row.green[i];
    pixels[3 * i + 2] = row.blue[i];
  }
}

struct Mirror {
  [[gnu::always_inline]] static void run(uint8_t* row, int count) { std::reverse(row, row + count); }
};

struct ToLevels {
  [[gnu::always_inline]] static void run(const int16_t* samples, int count, uint8_t* result) {
    uint8_t* __restrict levels = result;
    for (int i = 0; i < count; ++i) levels[i] = clipped((samples[i] + half_level) >> fraction_bits);
  }
};

#if defined(__x86_64__)

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load(const int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load_bytes(const uint8_t* from) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// 16-bit values, clipped to bytes.
[[gnu::target("avx2"), gnu::always_inline]] inline void store_bytes(__m256i values, uint8_t* to) {
  values = _mm256_permute4x64_epi64(_mm256_packus_epi16(values, values), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(values));
}

// (value * factor + half_color) >> color_bits, for factors below a half.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i scaled(__m256i value, int factor) {
  const __m256i twice =
      _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16(static_cast<int16_t>(factor)));
  return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i green_part(__m256i mixed, __m256i factors) {
  const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(mixed, factors), _mm256_set1_epi32(half_color));
  return _mm256_srai_epi32(sum, color_bits);
}

// Factors that do not fit 16 bits are split into whole ones and a rest.
[[gnu::target("avx2")]] void exact_rgb_avx2(const uint8_t* luma, const uint8_t* blueness,
                                            const uint8_t* redness, int count, RgbRow result) {
  constexpr int one = 1 << color_bits;
  constexpr int green_of_cb = -fixed(0.34414), green_of_cr = one - fixed(0.71414);
  const __m256i factors = _mm256_set1_epi32(
      static_cast<int>(static_cast<uint16_t>(green_of_cb) | static_cast<uint32_t>(green_of_cr) << 16));
  const __m256i zero = _mm256_set1_epi16(128);
  for (int i = 0; i < count; i += lanes) {
    const __m256i y = load_bytes(luma + i);
    const __m256i cb = _mm256_sub_epi16(load_bytes(blueness + i), zero);
    const __m256i cr = _mm256_sub_epi16(load_bytes(redness + i), zero);
    const __m256i green = _mm256_packs_epi32(green_part(_mm256_unpacklo_epi16(cb, cr), factors),
                                             green_part(_mm256_unpackhi_epi16(cb, cr), factors));
    const __m256i red = _mm256_add_epi16(cr, scaled(cr, fixed(1.40200) - one));
    const __m256i blue = _mm256_add_epi16(_mm256_add_epi16(cb, cb), scaled(cb, fixed(1.77200) - 2 * one));
    store_bytes(_mm256_add_epi16(y, red), result.red + i);
    store_bytes(_mm256_add_epi16(_mm256_sub_epi16(y, cr), green), result.green + i);
    store_bytes(_mm256_add_epi16(y, blue), result.blue + i);
  }
}

[[gnu::target("avx2"), gnu::always_inline]] inline void store_levels(__m256i samples, uint8_t* to) {
  store_bytes(_mm256_srai_epi16(_mm256_adds_epi16(samples, _mm256_set1_epi16(half_level)), fraction_bits),
              to);
}

[[gnu::target("avx2")]] void fast_rgb_avx2(const int16_t* luma, const int16_t* blueness,
                                           const int16_t* redness, int count, RgbRow result) {
  const __m256i zero = _mm256_set1_epi16(zero_chroma);
  for (int i = 0; i < count; i += lanes) {
    const __m256i y = load(luma + i);
    const __m256i cb = _mm256_sub_epi16(load(blueness + i), zero);
    const __m256i cr = _mm256_sub_epi16(load(redness + i), zero);
    const __m256i more_red = _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(red_of_cr));
    const __m256i more_blue = _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(blue_of_cb));
    const __m256i less_green = _mm256_add_epi16(_mm256_mulhrs_epi16(cb, _mm256_set1_epi16(green_of_cb)),
                                                _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(green_of_cr)));
    store_levels(_mm256_adds_epi16(_mm256_adds_epi16(y, cr), more_red), result.red + i);
    store_levels(_mm256_subs_epi16(y, less_green), result.green + i);
    store_levels(_mm256_adds_epi16(_mm256_adds_epi16(y, cb), more_blue), result.blue + i);
  }
}

// For each of three vectors of interleaved pixels, where its bytes of one channel come from; elsewhere zero.
struct Places {
  alignas(16) std::array<std::array<std::array<uint8_t, lanes>, 3>, 3> of;  // [vector][channel]
};

constexpr Places interleaving() {
  Places places{};
  for (size_t byte = 0; byte < 3 * lanes; ++byte) {
    for (size_t channel = 0; channel < 3; ++channel) {
      places.of[byte / lanes][channel][byte % lanes] =
          byte % 3 == channel ? static_cast<uint8_t>(byte / 3) : uint8_t{0x80};
    }
  }
  return places;
}

constexpr Places interleaved = interleaving();

[[gnu::target("avx2")]] void interleave_avx2(RgbRow row, int count, uint8_t* pixels) {
  const auto at = [](const void* from) { return static_cast<const __m128i*>(from); };
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const __m128i red = _mm_loadu_si128(at(row.red + i)), green = _mm_loadu_si128(at(row.green + i)),
                  blue = _mm_loadu_si128(at(row.blue + i));
    for (int vector = 0; vector < 3; ++vector) {
      const auto& places = interleaved.of[static_cast<size_t>(vector)];
      const __m128i bytes =
          _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(red, _mm_load_si128(at(&places[0]))),
                                    _mm_shuffle_epi8(green, _mm_load_si128(at(&places[1])))),
                       _mm_shuffle_epi8(blue, _mm_load_si128(at(&places[2]))));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels + 3 * i + lanes * vector), bytes);
    }
  }
  interleave_portable(row, i, count, pixels);
}

#endif

}  // namespace

void to_rgb(const uint8_t* luma, const uint8_t* blueness, const uint8_t* redness, int count, RgbRow result) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return exact_rgb_avx2(luma, blueness, redness, count, result);
#endif
  exact_rgb_portable(luma, blueness, redness, count, result);
}

void to_rgb(const int16_t* luma, const int16_t* blueness, const int16_t* redness, int count, RgbRow result) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return fast_rgb_avx2(luma, blueness, redness, count, result);
#endif
  fast_rgb_portable(luma, blueness, redness, count, result);
}

void to_levels(const int16_t* samples, int count, uint8_t* result) {
  run_best<ToLevels>(samples, count, result);
}

void split(const uint8_t* pixels, int count, RgbRow result) { run_best<Split>(pixels, count, result); }

void interleave(RgbRow row, int count, uint8_t* pixels) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return interleave_avx2(row, count, pixels);
#endif
  interleave_portable(row, 0, count, pixels);
}

void mirror(uint8_t* row, int count) { run_best<Mirror>(row, count); }

}  // namespace ddltrain::image
