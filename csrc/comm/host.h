// The ranks that share this host's memory and cores.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "barrier.h"
#include "mpi_check.h"
#include "window.h"

namespace ddltrain {

class Host {
 public:
  // Collective over `world`. `max_ranks` (0: no limit) makes several hosts of one. Without shared memory
  // there are no barriers, and window_error() says why.
  Host(const OwnComm& world, int num_slots, bool wants_windows, int max_ranks);

  const OwnComm& comm() const { return comm_; }
  int local_rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  int world_rank(int local_rank) const { return world_ranks_[static_cast<size_t>(local_rank)]; }
  // The lowest rank of the host of each rank of the world.
  const std::vector<int>& leaders() const { return leaders_; }
  // Whether there are more ranks than cores for them.
  bool crowded() const { return crowded_; }

  bool has_windows() const { return barriers_.has_value(); }
  const std::string& window_error() const { return window_error_; }
  SlotBarriers& barriers() { return *barriers_; }
  // Collective over the host.
  std::shared_ptr<Window> allocate(int64_t bytes);

 private:
  OwnComm comm_;
  std::vector<int> world_ranks_;
  std::vector<int> leaders_;
  bool crowded_ = false;
  std::unique_ptr<Window> control_;
  std::optional<SlotBarriers> barriers_;
  std::string window_error_;
  int num_windows_ = 0;
};

}  // namespace ddltrain
