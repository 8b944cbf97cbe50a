#include "column_filter.h"

#include <algorithm>
#include <span>

#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ddltrain::image {

namespace {

void fast_portable(const int16_t* const* sources, const int16_t* weights, int num_taps, int count,
                   int16_t* result) {
  for (int x = 0; x < count; ++x) {
    int sum = 0;
    for (int k = 0; k < num_taps; ++k) {
      const int product = (sources[k][x] * weights[k] + (1 << (column_bits - 1))) >> column_bits;
      sum = std::min(sum + product, INT16_MAX);
    }
    result[x] = static_cast<int16_t>(sum);
  }
}

void exact_portable(const int16_t* const* sources, const int16_t* weights, const int16_t* low_weights,
                    int num_taps, int count, uint8_t* result) {
  for (int x = 0; x < count; ++x) {
    int sum = 1 << (exact_bits - 1);
    for (int k = 0; k < num_taps; ++k) {
      sum += sources[k][x] * ((weights[k] << low_bits) + low_weights[k]);
    }
    result[x] = static_cast<uint8_t>(sum >> exact_bits);
  }
}

#if defined(__x86_64__)

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load(const int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// `known_taps`: the number of taps where the compiler shall know it, else 0.
template <int known_taps>
[[gnu::target("avx2")]] void fast_avx2(const int16_t* const* sources, const int16_t* weights, int any_taps,
                                       int count, int16_t* result) {
  const int num_taps = known_taps ? known_taps : any_taps;
  for (int x = 0; x < count; x += lanes) {
    __m256i sum = _mm256_mulhrs_epi16(load(sources[0] + x), _mm256_set1_epi16(weights[0]));
    for (int k = 1; k < num_taps; ++k) {
      const __m256i product = _mm256_mulhrs_epi16(load(sources[k] + x), _mm256_set1_epi16(weights[k]));
      sum = _mm256_adds_epi16(sum, product);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(result + x), sum);
  }
}

// Two rows at a time, interleaved: a lone last one is paired with itself at weight 0.
[[gnu::target("avx2")]] void exact_avx2(const int16_t* const* sources, const int16_t* weights,
                                        const int16_t* low_weights, int num_taps, int count,
                                        uint8_t* result) {
  const __m256i half = _mm256_set1_epi32(1 << (exact_bits - 1));
  const auto pair = [](const int16_t* from, int k, bool is_lone) {
    return static_cast<uint16_t>(from[k]) | (is_lone ? 0 : static_cast<int>(from[k + 1]) << 16);
  };
  for (int x = 0; x < count; x += lanes) {
    __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, low_sums[2] = {half, half};
    for (int k = 0; k < num_taps; k += 2) {
      const bool is_lone = k + 1 == num_taps;
      const __m256i first = load(sources[k] + x), second = load(sources[is_lone ? k : k + 1] + x);
      const __m256i weight = _mm256_set1_epi32(pair(weights, k, is_lone));
      const __m256i low_weight = _mm256_set1_epi32(pair(low_weights, k, is_lone));
      const __m256i mixed[2] = {_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)};
      for (int i = 0; i < 2; ++i) {
        sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(mixed[i], weight));
        low_sums[i] = _mm256_add_epi32(low_sums[i], _mm256_madd_epi16(mixed[i], low_weight));
      }
    }
    for (int i = 0; i < 2; ++i) {
      sums[i] = _mm256_add_epi32(_mm256_slli_epi32(sums[i], low_bits), low_sums[i]);
      sums[i] = _mm256_srai_epi32(sums[i], exact_bits);
    }
    const __m256i words = _mm256_packs_epi32(sums[0], sums[1]);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result + x), _mm256_castsi256_si128(bytes));
  }
}

#endif

}  // namespace

void ColumnFilter::set(const Taps& taps, Precision precision) {
  stride_ = taps.stride;
  starts_ = taps.starts;
  counts_ = taps.counts;
  weights_.resize(taps.weights.size());
  low_weights_.resize(precision == Precision::exact ? taps.weights.size() : 0);
  for (size_t i = 0; i < starts_.size(); ++i) {
    const size_t row = i * static_cast<size_t>(stride_);
    const std::span weights(&taps.weights[row], static_cast<size_t>(counts_[i]));
    if (precision == Precision::fast) {
      set_fast(weights, column_bits, &weights_[row]);
    } else {
      set_exact(weights, &weights_[row], &low_weights_[row]);
    }
  }
}

int ColumnFilter::max_taps() const { return *std::max_element(counts_.begin(), counts_.end()); }

void ColumnFilter::run_fast(int row, const int16_t* const* sources, int count, int16_t* result) const {
  const int16_t* weights = &weights_[static_cast<size_t>(row) * static_cast<size_t>(stride_)];
  const int taps = num_taps(row);
#if defined(__x86_64__)
  if (isa() == Isa::avx2) {
    switch (taps) {
      case 1:
        return fast_avx2<1>(sources, weights, taps, count, result);
      case 2:
        return fast_avx2<2>(sources, weights, taps, count, result);
      case 3:
        return fast_avx2<3>(sources, weights, taps, count, result);
      case 4:
        return fast_avx2<4>(sources, weights, taps, count, result);
      default:
        return fast_avx2<0>(sources, weights, taps, count, result);
    }
  }
#endif
  fast_portable(sources, weights, taps, count, result);
}

void ColumnFilter::run_exact(int row, const int16_t* const* sources, int count, uint8_t* result) const {
  const size_t first = static_cast<size_t>(row) * static_cast<size_t>(stride_);
  const int16_t *weights = &weights_[first], *low_weights = &low_weights_[first];
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return exact_avx2(sources, weights, low_weights, num_taps(row), count, result);
#endif
  exact_portable(sources, weights, low_weights, num_taps(row), count, result);
}

}  // namespace ddltrain::image
