#include "huffman.h"

#include <algorithm>
#include <numeric>

namespace ddltrain::image {

namespace {

// Lengths of codes for weights in rising order, longest first: package-merge (Larmore and Hirschberg 1990).
// At each of `max_bits` levels the weights are merged with the pairs of the level below.
std::vector<int> code_lengths(const std::vector<uint64_t>& weights, int max_bits) {
  const size_t max_merged = 2 * weights.size();
  std::vector<std::vector<uint8_t>> is_pair(static_cast<size_t>(max_bits));
  std::vector<uint64_t> below, merged;
  below.reserve(max_merged);
  merged.reserve(max_merged);
  for (auto& level : is_pair) {
    level.reserve(max_merged);
    merged.clear();
    size_t leaf = 0, pair = 0;
    while (leaf < weights.size() || 2 * pair + 1 < below.size()) {
      const bool has_pair = 2 * pair + 1 < below.size();
      const uint64_t sum = has_pair ? below[2 * pair] + below[2 * pair + 1] : 0;
      const bool takes_pair = has_pair && (leaf == weights.size() || sum < weights[leaf]);
      merged.push_back(takes_pair ? sum : weights[leaf]);
      level.push_back(takes_pair);
      ++(takes_pair ? pair : leaf);
    }
    below.swap(merged);
  }
  std::vector<int> lengths(weights.size(), 0);
  size_t used = 2 * weights.size() - 2;
  for (size_t level = is_pair.size(); level-- > 0;) {
    size_t leaf = 0, pairs = 0;
    for (size_t i = 0; i < used; ++i) is_pair[level][i] ? ++pairs : static_cast<size_t>(++lengths[leaf++]);
    used = 2 * pairs;
  }
  return lengths;
}

}  // namespace

bool is_code(const HuffmanTable& table) {
  uint32_t code = 0;
  for (size_t i = 0; i < table.counts.size(); ++i) {
    code += table.counts[i];
    if (code > 1u << (i + 1)) return false;
    code <<= 1;
  }
  return std::reduce(table.counts.begin(), table.counts.end(), size_t{0}) == table.symbols.size();
}

HuffmanTable optimal_table(const Histogram& histogram, int max_bits) {
  constexpr int nobody = -1;  // gets the code that is all ones
  std::vector<int> symbols = {nobody};
  for (int symbol = 0; symbol < num_symbols; ++symbol) {
    if (histogram[static_cast<size_t>(symbol)] > 0) symbols.push_back(symbol);
  }
  const auto weight = [&](int symbol) {
    return symbol == nobody ? 0 : histogram[static_cast<size_t>(symbol)];
  };
  std::ranges::stable_sort(symbols, {}, weight);
  std::vector<uint64_t> weights(symbols.size());
  std::ranges::transform(symbols, weights.begin(), weight);
  const std::vector<int> lengths = code_lengths(weights, max_bits);
  HuffmanTable table;
  for (size_t i = symbols.size(); i-- > 1;) {
    ++table.counts[static_cast<size_t>(lengths[i] - 1)];
    table.symbols.push_back(static_cast<uint8_t>(symbols[i]));
  }
  return table;
}

HuffmanReader::HuffmanReader(HuffmanTable table) : table_(std::move(table)) {
  uint32_t code = 0, start = 0;
  for (size_t i = 0; i < table_.counts.size(); ++i) {
    const size_t shift = max_code_bits - 1 - i;
    firsts_[i] = code << shift;
    starts_[i] = start;
    code += table_.counts[i];
    start += table_.counts[i];
    limits_[i] = code << shift;
    code <<= 1;
  }
  auto next = shorts_.begin();
  size_t place = 0;
  for (int length = 1; length <= short_bits; ++length) {
    for (int n = 0; n < table_.counts[static_cast<size_t>(length - 1)]; ++n) {
      next = std::fill_n(next, 1 << (short_bits - length),
                         Short{table_.symbols[place++], static_cast<uint8_t>(length)});
    }
  }
}

int HuffmanReader::read_long(BitReader& bits, uint32_t next) const {
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (next < limits_[i]) {
      bits.skip(static_cast<int>(i) + 1);
      return table_.symbols[starts_[i] + ((next - firsts_[i]) >> (max_code_bits - 1 - i))];
    }
  }
  return -1;
}

HuffmanWriter::HuffmanWriter(const HuffmanTable& table) {
  uint16_t code = 0;
  size_t place = 0;
  for (size_t i = 0; i < table.counts.size(); ++i) {
    for (int n = 0; n < table.counts[i]; ++n) {
      const uint8_t symbol = table.symbols[place++];
      codes_[symbol] = code++;
      lengths_[symbol] = static_cast<uint8_t>(i + 1);
    }
    code = static_cast<uint16_t>(code << 1);
  }
}

}  // namespace ddltrain::image
