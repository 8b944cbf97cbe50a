// Resizes along rows.
#pragma once

#include <cstdint>
#include <vector>

#include "taps.h"
#include "weights.h"

namespace ddltrain::image {

// Samples that may be read (and are ignored) behind the last one of a source row.
constexpr int source_slack = 16;

class RowFilter {
 public:
  // `left` is the source sample that rows begin with. With `flip`, results come in the opposite order.
  void set(const Taps& taps, Precision precision, int left, bool flip);
  int count() const { return count_; }

  // Writes padded(count()) samples: whole levels in `exact`, levels times 128 in `fast`.
  void run(const uint8_t* source, int16_t* result) const;

 private:
  void set_weights(const Taps& taps, int left, bool flip);
  bool set_shuffles();
  void run_portable(const uint8_t* source, int16_t* result) const;
  void run_long_avx2(const uint8_t* source, int16_t* result) const;
  void run_short_avx2(const uint8_t* source, int16_t* result) const;
  template <Precision precision, int pairs>
  void run_pairs_avx2(const uint8_t* source, int16_t* result) const;

  Precision precision_ = Precision::fast;
  int count_ = 0, stride_ = 0, num_pairs_ = 0;
  bool has_shuffles_ = false;
  std::vector<int> starts_, counts_;            // [padded count]
  std::vector<int16_t> weights_, low_weights_;  // [padded count][stride]; low_weights_ in `exact` only
  std::vector<int> bases_;                      // see set_shuffles
  std::vector<uint32_t> shuffles_, pair_weights_, low_pair_weights_;
};

}  // namespace ddltrain::image
