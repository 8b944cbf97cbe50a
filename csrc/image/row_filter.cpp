#include "row_filter.h"

#include <algorithm>
#include <span>

#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddltrain::image {

namespace {

constexpr int quad = 4, reach = 16;  // four results in a row are shuffled out of 16 source samples
constexpr int max_pairs = 4;         // of taps
constexpr int long_step = 8;         // taps that run_long_avx2 takes at once

constexpr int fast_shift = row_bits - fraction_bits;

// For the place of a source sample: the byte of a shuffle that fetches it, or one that gives zero.
uint32_t fetch(int place) { return place < reach ? static_cast<uint32_t>(place) : 0x80; }

uint32_t pair_of(const int16_t* weights) {
  return static_cast<uint16_t>(weights[0]) | static_cast<uint32_t>(static_cast<uint16_t>(weights[1])) << 16;
}

int16_t rounded(int sum, int bits) { return static_cast<int16_t>((sum + (1 << (bits - 1))) >> bits); }

}  // namespace

void RowFilter::set(const Taps& taps, Precision precision, int left, bool flip) {
  precision_ = precision;
  count_ = taps.count;
  const int num_taps = *std::max_element(taps.counts.begin(), taps.counts.end());
  num_pairs_ = (num_taps + 1) / 2;
  stride_ = (num_taps + long_step - 1) / long_step * long_step;
  set_weights(taps, left, flip);
  has_shuffles_ = isa() == Isa::avx2 && num_pairs_ <= max_pairs && set_shuffles();
}

void RowFilter::set_weights(const Taps& taps, int left, bool flip) {
  const auto num_results = static_cast<size_t>(padded(count_)), stride = static_cast<size_t>(stride_);
  starts_.assign(num_results, 0);
  counts_.assign(num_results, 0);
  weights_.assign(num_results * stride, 0);
  low_weights_.assign(precision_ == Precision::exact ? num_results * stride : 0, 0);
  for (size_t i = 0; i < static_cast<size_t>(count_); ++i) {
    const size_t from = flip ? static_cast<size_t>(count_) - 1 - i : i;
    const std::span weights(&taps.weights[from * static_cast<size_t>(taps.stride)],
                            static_cast<size_t>(taps.counts[from]));
    starts_[i] = taps.starts[from] - left;
    counts_[i] = taps.counts[from];
    if (precision_ == Precision::fast) {
      set_fast(weights, row_bits, &weights_[i * stride]);
    } else {
      set_exact(weights, &weights_[i * stride], &low_weights_[i * stride]);
    }
  }
}

// The tables of run_pairs_avx2. A block of 16 results is made in two vectors of eight, such that packing them
// gives the results in order: 0-3 and 8-11, then 4-7 and 12-15. For every four results in a row `bases_` says
// where their samples begin; for each pair of taps, `shuffles_` fetches two samples from there, widened to 16
// bits, for each result, and `pair_weights_` has their weights. False where 16 samples do not suffice.
bool RowFilter::set_shuffles() {
  const int num_results = padded(count_);
  const auto table_size = static_cast<size_t>(num_results) * static_cast<size_t>(num_pairs_);
  bases_.resize(static_cast<size_t>(num_results / quad));
  shuffles_.resize(table_size);
  pair_weights_.resize(table_size);
  low_pair_weights_.resize(precision_ == Precision::exact ? table_size : 0);
  for (int first = 0; first < num_results; first += quad) {
    const int block = first / lanes, vector = first / quad % 2, half = first % lanes / (2 * quad);
    const int behind = std::clamp(count_, first, first + quad);
    int base = first < behind ? starts_[static_cast<size_t>(first)] : 0;
    for (int i = first; i < behind; ++i) base = std::min(base, starts_[static_cast<size_t>(i)]);
    bases_[static_cast<size_t>(block * quad + vector * 2 + half)] = base;
    for (int i = first; i < first + quad; ++i) {
      const int offset = i < behind ? starts_[static_cast<size_t>(i)] - base : 0;
      if (offset + counts_[static_cast<size_t>(i)] > reach) return false;
      for (int pair = 0; pair < num_pairs_; ++pair) {
        const int place = offset + 2 * pair;
        const auto tap = static_cast<size_t>(i * stride_ + 2 * pair);
        const auto entry =
            static_cast<size_t>(((block * num_pairs_ + pair) * 2 + vector) * 8 + half * quad + i - first);
        shuffles_[entry] = 0x80008000 | fetch(place) | fetch(place + 1) << 16;
        pair_weights_[entry] = pair_of(&weights_[tap]);
        if (precision_ == Precision::exact) low_pair_weights_[entry] = pair_of(&low_weights_[tap]);
      }
    }
  }
  return true;
}

void RowFilter::run(const uint8_t* source, int16_t* result) const {
  if (isa() == Isa::portable) return run_portable(source, result);
  if (!has_shuffles_) return run_long_avx2(source, result);
  run_short_avx2(source, result);
}

void RowFilter::run_portable(const uint8_t* source, int16_t* result) const {
  for (size_t i = 0; i < starts_.size(); ++i) {
    const uint8_t* samples = source + starts_[i];
    const size_t row = i * static_cast<size_t>(stride_);
    int sum = 0, low_sum = 0;
    for (int k = 0; k < counts_[i]; ++k) sum += samples[k] * weights_[row + static_cast<size_t>(k)];
    if (precision_ == Precision::fast) {
      result[i] = rounded(sum, fast_shift);
      continue;
    }
    for (int k = 0; k < counts_[i]; ++k) low_sum += samples[k] * low_weights_[row + static_cast<size_t>(k)];
    result[i] = rounded((sum << low_bits) + low_sum, exact_bits);
  }
}

#if defined(__x86_64__)

namespace {

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline const __m128i* load_at(const void* from) { return static_cast<const __m128i*>(from); }

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load_two(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(load_at(low))),
                                 _mm_loadu_si128(load_at(high)), 1);
}

[[gnu::target("avx2"), gnu::always_inline]] inline int sum_of(__m128i values) {
  values = _mm_add_epi32(values, _mm_shuffle_epi32(values, 0x4E));
  values = _mm_add_epi32(values, _mm_shuffle_epi32(values, 0xB1));
  return _mm_cvtsi128_si32(values);
}

}  // namespace

template <Precision precision, int pairs>
[[gnu::target("avx2")]] void RowFilter::run_pairs_avx2(const uint8_t* source, int16_t* result) const {
  constexpr bool is_exact = precision == Precision::exact;
  constexpr int shift = is_exact ? exact_bits : fast_shift;
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  const int* bases = bases_.data();
  const uint32_t *shuffles = shuffles_.data(), *weights = pair_weights_.data(),
                 *low_weights = low_pair_weights_.data();
  for (int i = 0; i < count_; i += lanes, bases += quad) {
    __m256i sums[2];
    for (int vector = 0; vector < 2; ++vector) {
      const __m256i samples = load_two(source + bases[2 * vector], source + bases[2 * vector + 1]);
      __m256i sum = is_exact ? _mm256_setzero_si256() : half, low_sum = half;
#pragma GCC unroll 4
      for (int pair = 0; pair < pairs; ++pair) {
        const int entry = 16 * pair + 8 * vector;
        const __m256i fetched = _mm256_shuffle_epi8(samples, load(shuffles + entry));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(fetched, load(weights + entry)));
        if constexpr (is_exact) {
          low_sum = _mm256_add_epi32(low_sum, _mm256_madd_epi16(fetched, load(low_weights + entry)));
        }
      }
      if constexpr (is_exact) sum = _mm256_add_epi32(_mm256_slli_epi32(sum, low_bits), low_sum);
      sums[vector] = _mm256_srai_epi32(sum, shift);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(result + i), _mm256_packs_epi32(sums[0], sums[1]));
    shuffles += 16 * pairs;
    weights += 16 * pairs;
    if constexpr (is_exact) low_weights += 16 * pairs;
  }
}

void RowFilter::run_short_avx2(const uint8_t* source, int16_t* result) const {
  const auto run = [&]<int pairs>() {
    if (precision_ == Precision::fast) return run_pairs_avx2<Precision::fast, pairs>(source, result);
    run_pairs_avx2<Precision::exact, pairs>(source, result);
  };
  switch (num_pairs_) {
    case 1:
      return run.operator()<1>();
    case 2:
      return run.operator()<2>();
    case 3:
      return run.operator()<3>();
    default:
      run.operator()<max_pairs>();
  }
}

[[gnu::target("avx2")]] void RowFilter::run_long_avx2(const uint8_t* source, int16_t* result) const {
  const bool is_exact = precision_ == Precision::exact;
  for (size_t i = 0; i < starts_.size(); ++i) {
    const uint8_t* samples = source + starts_[i];
    const size_t row = i * static_cast<size_t>(stride_);
    __m128i sums = _mm_setzero_si128(), low_sums = sums;
    for (int k = 0; k < counts_[i]; k += long_step) {
      const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64(load_at(samples + k)));
      const auto tap = row + static_cast<size_t>(k);
      sums = _mm_add_epi32(sums, _mm_madd_epi16(bytes, _mm_loadu_si128(load_at(&weights_[tap]))));
      if (!is_exact) continue;
      low_sums = _mm_add_epi32(low_sums, _mm_madd_epi16(bytes, _mm_loadu_si128(load_at(&low_weights_[tap]))));
    }
    result[i] = is_exact ? rounded((sum_of(sums) << low_bits) + sum_of(low_sums), exact_bits)
                         : rounded(sum_of(sums), fast_shift);
  }
}

#else

void RowFilter::run_short_avx2(const uint8_t* source, int16_t* result) const { run_portable(source, result); }
void RowFilter::run_long_avx2(const uint8_t* source, int16_t* result) const { run_portable(source, result); }

#endif

}  // namespace ddltrain::image
