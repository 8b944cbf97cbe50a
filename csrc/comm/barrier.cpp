#include "barrier.h"

#include <utility>

namespace ddltrain {

SlotBarriers::SlotBarriers(std::vector<Arrival*> lines, int num_slots, int own_rank)
    : lines_(std::move(lines)),
      own_rank_(static_cast<size_t>(own_rank)),
      count_(static_cast<size_t>(num_slots)),
      signature_(static_cast<size_t>(num_slots)),
      next_(static_cast<size_t>(num_slots)),
      odd_(static_cast<size_t>(num_slots), -1) {}

void SlotBarriers::arrive(int slot, uint64_t signature) {
  const auto index = static_cast<size_t>(slot);
  const uint64_t count = ++count_[index];
  signature_[index] = signature;
  next_[index] = 0;
  odd_[index] = -1;
  Arrival& own = line(slot, own_rank_);
  own.signature[count & 1].store(signature, std::memory_order_relaxed);
  own.count.store(count, std::memory_order_release);
}

bool SlotBarriers::test(int slot) {
  const auto index = static_cast<size_t>(slot);
  const uint64_t count = count_[index];
  for (size_t& rank = next_[index]; rank < lines_.size(); ++rank) {
    Arrival& other = line(slot, rank);
    if (other.count.load(std::memory_order_acquire) < count) return false;
    if (other.signature[count & 1].load(std::memory_order_relaxed) != signature_[index])
      odd_[index] = static_cast<int>(rank);
  }
  return true;
}

int SlotBarriers::find_given_up() const {
  for (size_t rank = 0; rank < lines_.size(); ++rank) {
    if (line(0, rank).gave_up.load(std::memory_order_acquire)) return static_cast<int>(rank);
  }
  return -1;
}

}  // namespace ddltrain
