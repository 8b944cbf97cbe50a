#include "plan.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace ddltrain {

namespace {

// The newest operations on one segment.
struct Chain {
  int last = -1;           // the newest that is no send
  std::vector<int> sends;  // those after it
};

void require(bool holds, size_t row, const char* rule) {
  if (!holds) throw std::invalid_argument("row " + std::to_string(row) + " of a plan: " + rule);
}

}  // namespace

Plan::Plan(std::span<const int64_t> rows, uint64_t key, int rows_ahead, int rank, int world_size)
    : key_(key), rows_ahead_(rows_ahead) {
  if (rows.size() % num_columns != 0) throw std::invalid_argument("a plan's rows have 7 columns");
  if (rows_ahead < 1) throw std::invalid_argument("a plan's first unfinished row may always be sent");
  int64_t phase = std::numeric_limits<int64_t>::min();
  for (size_t begin = 0; begin < rows.size(); begin += num_columns) {
    const auto row = rows.subspan(begin, num_columns);
    require(row[1] >= phase, ops_.size(), "phases must not go back");
    if (row[1] > phase) phase_begin_.push_back(static_cast<int>(ops_.size()));
    phase = row[1];
    add_row(row, rank, world_size);
  }
  phase_begin_.push_back(static_cast<int>(ops_.size()));
  connect();
}

std::span<const int> Plan::dependents(int row) const {
  const auto index = static_cast<size_t>(row);
  return std::span(dependents_)
      .subspan(static_cast<size_t>(dependents_begin_[index]),
               static_cast<size_t>(dependents_begin_[index + 1] - dependents_begin_[index]));
}

void Plan::add_row(std::span<const int64_t> row, int rank, int world_size) {
  const size_t index = ops_.size();
  require(row[0] >= 0 && row[0] <= static_cast<int64_t>(Kind::local_reduce_spread), index, "unknown kind");
  PlanOp op{
      static_cast<Kind>(row[0]), static_cast<int>(row[3]), static_cast<int>(row[4]), -1, row[5], row[6]};
  const bool is_message = op.kind <= Kind::recv_reduce;
  if (is_message) {
    require(row[3] >= 0 && row[3] < (int64_t{1} << tag_bits), index, "tag out of range");
    require(row[4] >= 0 && row[4] < world_size && row[4] != rank, index, "peer out of range");
    const auto place = std::find(peers_.begin(), peers_.end(), op.peer);
    op.link = static_cast<int>(place - peers_.begin());
    if (place == peers_.end()) peers_.push_back(op.peer);
    max_message_ = std::max(max_message_, op.count);
  } else {
    uses_window_ = true;
  }
  if (op.kind != Kind::local_barrier) {
    require(op.offset >= 0 && op.count > 0, index, "empty or negative range");
    end_ = std::max(end_, op.offset + op.count);
  }
  if (op.kind == Kind::local_reduce || op.kind == Kind::local_reduce_spread) reduces_locally_ = true;
  ops_.push_back(op);
}

void Plan::connect() {
  std::vector<std::pair<int, int>> edges;  // (awaited, dependent)
  for (int phase = 0; phase < num_phases(); ++phase) {
    std::unordered_map<int64_t, Chain> chains;
    for (int row = phase_begin(phase); row < phase_begin(phase + 1); ++row) {
      const PlanOp& op = ops_[static_cast<size_t>(row)];
      if (op.kind == Kind::local_barrier) continue;
      Chain& chain = chains[op.offset];
      if (op.kind != Kind::send && !chain.sends.empty()) {
        for (int send : chain.sends) edges.emplace_back(send, row);
      } else if (chain.last >= 0) {
        edges.emplace_back(chain.last, row);
      }
      if (op.kind == Kind::send) {
        chain.sends.push_back(row);
      } else {
        chain = {row, {}};
      }
    }
  }
  std::stable_sort(edges.begin(), edges.end(), [](auto& a, auto& b) { return a.first < b.first; });
  num_awaited_.assign(ops_.size(), 0);
  dependents_begin_.assign(ops_.size() + 1, 0);
  for (const auto& [awaited, dependent] : edges) {
    ++dependents_begin_[static_cast<size_t>(awaited) + 1];
    ++num_awaited_[static_cast<size_t>(dependent)];
    dependents_.push_back(dependent);
  }
  for (size_t row = 0; row < ops_.size(); ++row) {
    dependents_begin_[row + 1] += dependents_begin_[row];
    if (ops_[row].kind == Kind::recv_reduce) ++num_awaited_[row];
  }
}

}  // namespace ddltrain
