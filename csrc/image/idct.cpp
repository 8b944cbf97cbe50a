#include "idct.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddltrain::image {

namespace {

// Each is a sum of libjpeg's constants, which multiply sums and differences of the inputs. Rounding comes
// after the sums, so multiplying the inputs themselves gives the same.
constexpr int one = 1 << 13;
constexpr int even_2[2] = {10703, 4433}, even_6[2] = {4433, -10704};  // inputs 2 and 6 in sums 0 and 1
constexpr int odd_1[4] = {11363, 9633, 6437, 2260};                   // input 1 in odd sums 0 to 3
constexpr int odd_3[4] = {9633, -2259, -11362, -6436};
constexpr int odd_5[4] = {6437, -11362, 2261, 9633};
constexpr int odd_7[4] = {2260, -6436, 9633, -11363};
constexpr int first_shift = 11, second_shift = 18;

// Eight results of one row or column, not yet shifted.
void transform(const int16_t in[8], int shift, int32_t out[8]) {
  const auto multiply = [](int value, int factor) { return static_cast<uint32_t>(value * factor); };
  const uint32_t round = 1u << (shift - 1);
  const uint32_t sum = multiply(in[0] + in[4], one) + round,
                 difference = multiply(in[0] - in[4], one) + round;
  const uint32_t even_0 = multiply(in[2], even_2[0]) + multiply(in[6], even_6[0]);
  const uint32_t even_1 = multiply(in[2], even_2[1]) + multiply(in[6], even_6[1]);
  const uint32_t even[4] = {sum + even_0, difference + even_1, difference - even_1, sum - even_0};
  for (int i = 0; i < 4; ++i) {
    const uint32_t odd = multiply(in[1], odd_1[i]) + multiply(in[5], odd_5[i]) + multiply(in[3], odd_3[i]) +
                         multiply(in[7], odd_7[i]);
    out[i] = static_cast<int32_t>(even[i] + odd) >> shift;
    out[7 - i] = static_cast<int32_t>(even[i] - odd) >> shift;
  }
}

}  // namespace

void idct_portable(const int16_t* coefficients, const int16_t* steps, uint8_t* samples, ptrdiff_t stride) {
  int16_t columns[block_side][block_side];  // [row][column]
  for (int column = 0; column < block_side; ++column) {
    int16_t in[block_side];
    int32_t out[block_side];
    for (int row = 0; row < block_side; ++row) {
      const int slot = slot_of(row, column);
      in[row] = static_cast<int16_t>(coefficients[slot] * steps[slot]);
    }
    transform(in, first_shift, out);
    for (int row = 0; row < block_side; ++row) {
      columns[row][column] = static_cast<int16_t>(std::clamp(out[row], INT16_MIN, INT16_MAX));
    }
  }
  for (int row = 0; row < block_side; ++row, samples += stride) {
    int32_t out[block_side];
    transform(columns[row], second_shift, out);
    for (int column = 0; column < block_side; ++column) {
      samples[column] = static_cast<uint8_t>(std::clamp(out[column], -128, 127) + 128);
    }
  }
}

#if defined(__x86_64__)

namespace {

// Pairs of inputs of eight rows or columns: each 32-bit element holds two of 16 bits.
struct Pairs {
  __m256i in_0_4, in_2_6, in_1_5, in_3_7;
};

struct Sums {
  __m256i out[block_side];  // 32-bit elements
};

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i products(__m256i pairs, int first, int second) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi32((second << 16) | (first & 0xffff)));
}

template <int shift>
[[gnu::target("avx2"), gnu::always_inline]] inline Sums transform_avx2(const Pairs& in) {
  const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
  const __m256i sum = _mm256_add_epi32(products(in.in_0_4, one, one), round);
  const __m256i difference = _mm256_add_epi32(products(in.in_0_4, one, -one), round);
  const __m256i even_0 = products(in.in_2_6, even_2[0], even_6[0]);
  const __m256i even_1 = products(in.in_2_6, even_2[1], even_6[1]);
  const __m256i even[4] = {_mm256_add_epi32(sum, even_0), _mm256_add_epi32(difference, even_1),
                           _mm256_sub_epi32(difference, even_1), _mm256_sub_epi32(sum, even_0)};
  Sums sums;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i odd =
        _mm256_add_epi32(products(in.in_1_5, odd_1[i], odd_5[i]), products(in.in_3_7, odd_3[i], odd_7[i]));
    sums.out[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd), shift);
    sums.out[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd), shift);
  }
  return sums;
}

// From eight rows of columns to pairs of columns (c, c + 4) of eight rows, clamped to 16 bits.
[[gnu::target("avx2"), gnu::always_inline]] inline Pairs transpose(const Sums& rows) {
  // two rows in each: columns 0 to 3 in the low half, 4 to 7 in the high one
  const __m256i rows_01 = _mm256_packs_epi32(rows.out[0], rows.out[1]);
  const __m256i rows_23 = _mm256_packs_epi32(rows.out[2], rows.out[3]);
  const __m256i rows_45 = _mm256_packs_epi32(rows.out[4], rows.out[5]);
  const __m256i rows_67 = _mm256_packs_epi32(rows.out[6], rows.out[7]);
  // the pairs of two rows in each: 0 and 4, 1 and 5, 2 and 6, 3 and 7
  const __m256i low_0145 = _mm256_permute2x128_si256(rows_01, rows_45, 0x20);
  const __m256i high_0145 = _mm256_permute2x128_si256(rows_01, rows_45, 0x31);
  const __m256i low_2367 = _mm256_permute2x128_si256(rows_23, rows_67, 0x20);
  const __m256i high_2367 = _mm256_permute2x128_si256(rows_23, rows_67, 0x31);
  const __m256i pairs_04 = _mm256_unpacklo_epi16(low_0145, high_0145);
  const __m256i pairs_15 = _mm256_unpackhi_epi16(low_0145, high_0145);
  const __m256i pairs_26 = _mm256_unpacklo_epi16(low_2367, high_2367);
  const __m256i pairs_37 = _mm256_unpackhi_epi16(low_2367, high_2367);
  // 4 x 4 elements of 32 bits, transposed in each half
  const __m256i first_0145 = _mm256_unpacklo_epi32(pairs_04, pairs_15);
  const __m256i last_0145 = _mm256_unpackhi_epi32(pairs_04, pairs_15);
  const __m256i first_2367 = _mm256_unpacklo_epi32(pairs_26, pairs_37);
  const __m256i last_2367 = _mm256_unpackhi_epi32(pairs_26, pairs_37);
  return {.in_0_4 = _mm256_unpacklo_epi64(first_0145, first_2367),
          .in_2_6 = _mm256_unpacklo_epi64(last_0145, last_2367),
          .in_1_5 = _mm256_unpackhi_epi64(first_0145, first_2367),
          .in_3_7 = _mm256_unpackhi_epi64(last_0145, last_2367)};
}

// Writes columns of eight rows as samples.
[[gnu::target("avx2"), gnu::always_inline]] inline void store(const Sums& columns, uint8_t* samples,
                                                              ptrdiff_t stride) {
  // bytes: four columns of rows 0 to 3 in the low half, of rows 4 to 7 in the high one
  const __m256i first = _mm256_packs_epi16(_mm256_packs_epi32(columns.out[0], columns.out[1]),
                                           _mm256_packs_epi32(columns.out[2], columns.out[3]));
  const __m256i last = _mm256_packs_epi16(_mm256_packs_epi32(columns.out[4], columns.out[5]),
                                          _mm256_packs_epi32(columns.out[6], columns.out[7]));
  const __m256i by_row =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i center = _mm256_set1_epi8(-128);
  const __m256i left = _mm256_shuffle_epi8(_mm256_xor_si256(first, center), by_row);
  const __m256i right = _mm256_shuffle_epi8(_mm256_xor_si256(last, center), by_row);
  const __m256i rows_0145 = _mm256_unpacklo_epi32(left, right),
                rows_2367 = _mm256_unpackhi_epi32(left, right);
  const auto store_two = [&](__m128i rows, int row) __attribute__((target("avx2"), always_inline)) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(samples + row * stride), rows);
    _mm_storeh_pd(reinterpret_cast<double*>(samples + (row + 1) * stride), _mm_castsi128_pd(rows));
  };
  store_two(_mm256_castsi256_si128(rows_0145), 0);
  store_two(_mm256_castsi256_si128(rows_2367), 2);
  store_two(_mm256_extracti128_si256(rows_0145, 1), 4);
  store_two(_mm256_extracti128_si256(rows_2367, 1), 6);
}

}  // namespace

[[gnu::target("avx2")]] void idct_avx2(const int16_t* coefficients, const int16_t* steps, uint8_t* samples,
                                       ptrdiff_t stride) {
  const auto load = [&](int pair) __attribute__((target("avx2"), always_inline)) {
    const auto* values = reinterpret_cast<const __m256i*>(coefficients) + pair;
    const auto* factors = reinterpret_cast<const __m256i*>(steps) + pair;
    return _mm256_mullo_epi16(_mm256_load_si256(values), _mm256_load_si256(factors));
  };
  const Pairs rows = {.in_0_4 = load(0), .in_2_6 = load(1), .in_1_5 = load(2), .in_3_7 = load(3)};
  store(transform_avx2<second_shift>(transpose(transform_avx2<first_shift>(rows))), samples, stride);
}

#endif

}  // namespace ddltrain::image
