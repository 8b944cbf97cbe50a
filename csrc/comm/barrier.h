// Barriers of the ranks of a host in shared memory, one for each operation that may be in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace ddltrain {

// What a rank tells the others of its host about one slot; a cache line of its own.
struct alignas(64) Arrival {
  std::atomic<uint64_t> count;
  // Of the operation that the rank arrived with, by the parity of `count`: a rank can be one barrier ahead.
  std::atomic<uint64_t> signature[2];
  std::atomic<bool> gave_up;  // that of slot 0 counts
};

// Each rank counts its arrivals up in its own line and reads those of the others: one cache miss per other
// rank, nothing to reset, and it is known who is missing.
class SlotBarriers {
 public:
  // `lines` has the array of `num_slots` lines of each rank, in memory that all share, zeroed.
  SlotBarriers(std::vector<Arrival*> lines, int num_slots, int own_rank);

  // Tells the others; what this rank wrote before is visible to them once they have seen it.
  void arrive(int slot, uint64_t signature);
  // Whether all ranks have arrived as often as this one.
  bool test(int slot);
  // After test() was false: the first rank that has not arrived.
  int missing(int slot) const { return static_cast<int>(next_[static_cast<size_t>(slot)]); }
  // After test() was true: a rank that arrived with another signature, or -1.
  int odd_one(int slot) const { return odd_[static_cast<size_t>(slot)]; }

  // Tells the others that this rank will arrive no more.
  void give_up() { line(0, own_rank_).gave_up.store(true, std::memory_order_release); }
  // A rank that has given up, or -1.
  int find_given_up() const;

 private:
  Arrival& line(int slot, size_t rank) const { return lines_[rank][slot]; }

  std::vector<Arrival*> lines_;
  size_t own_rank_;
  std::vector<uint64_t> count_;
  std::vector<uint64_t> signature_;
  std::vector<size_t> next_;
  std::vector<int> odd_;
};

}  // namespace ddltrain
