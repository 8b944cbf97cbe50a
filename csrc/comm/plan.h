// One rank's part of a plan, checked and turned into what the executor walks through.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ddltrain {

enum class Kind { send, recv, recv_reduce, local_barrier, local_reduce, local_spread, local_reduce_spread };

struct PlanOp {
  Kind kind;
  int tag;
  int peer;  // rank
  int link;  // index of the peer among the plan's peers, -1 without one
  int64_t offset;
  int64_t count;
};

// Operations on the same segment of a phase run in the order of their rows, except that sends that follow
// each other may run at once. An operation is ready when all that it waits for are done.
class Plan {
 public:
  static constexpr int num_columns = 7;  // KIND, PHASE, LANE, TAG, PEER, OFFSET, COUNT
  static constexpr int tag_bits = 20;

  // `rows` is [num_ops, num_columns]. `key` identifies the plan that all ranks have parts of. Nothing is sent
  // that stands `rows_ahead` or more behind the first unfinished row.
  // Throws std::invalid_argument for rows that break the rules.
  Plan(std::span<const int64_t> rows, uint64_t key, int rows_ahead, int rank, int world_size);

  const std::vector<PlanOp>& ops() const { return ops_; }
  int num_phases() const { return static_cast<int>(phase_begin_.size()) - 1; }
  int phase_begin(int phase) const { return phase_begin_[static_cast<size_t>(phase)]; }
  // The operations that wait for operation `row`.
  std::span<const int> dependents(int row) const;
  // How many events each operation waits for: other operations and, for recv_reduce, its own message.
  const std::vector<int>& num_awaited() const { return num_awaited_; }
  const std::vector<int>& peers() const { return peers_; }
  uint64_t key() const { return key_; }
  int rows_ahead() const { return rows_ahead_; }
  int64_t end() const { return end_; }                  // one past the last element that is touched
  int64_t max_message() const { return max_message_; }  // elements
  bool uses_window() const { return uses_window_; }
  bool reduces_locally() const { return reduces_locally_; }

 private:
  void add_row(std::span<const int64_t> row, int rank, int world_size);
  void connect();

  uint64_t key_;
  int rows_ahead_;
  std::vector<PlanOp> ops_;
  std::vector<int> phase_begin_;
  std::vector<int> dependents_begin_;
  std::vector<int> dependents_;
  std::vector<int> num_awaited_;
  std::vector<int> peers_;
  int64_t end_ = 0;
  int64_t max_message_ = 0;
  bool uses_window_ = false;
  bool reduces_locally_ = false;
};

}  // namespace ddltrain
