// Resizes along columns, from rows that a RowFilter made.
#pragma once

#include <cstdint>
#include <vector>

#include "taps.h"
#include "weights.h"

namespace ddltrain::image {

class ColumnFilter {
 public:
  void set(const Taps& taps, Precision precision);
  int start(int row) const { return starts_[static_cast<size_t>(row)]; }
  int num_taps(int row) const { return counts_[static_cast<size_t>(row)]; }
  int max_taps() const;

  // Makes one row of `count` samples, a multiple of lanes, out of the num_taps(row) rows from start(row)
  // on: levels times 128 ...
  void run_fast(int row, const int16_t* const* sources, int count, int16_t* result) const;
  // ... or whole levels.
  void run_exact(int row, const int16_t* const* sources, int count, uint8_t* result) const;

 private:
  int stride_ = 0;
  std::vector<int> starts_, counts_;
  std::vector<int16_t> weights_, low_weights_;  // [count][stride]; low_weights_ in `exact` only
};

}  // namespace ddltrain::image
