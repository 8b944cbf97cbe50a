#include "host.h"

#include <sched.h>

namespace ddltrain {

namespace {

// Whether the ranks of `host` may use fewer cores than they are.
bool is_crowded(const OwnComm& host) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return true;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, host.get()));
  return CPU_COUNT(&cores) < host.size();
}

}  // namespace

Host::Host(const OwnComm& world, int num_slots, bool wants_windows, int max_ranks)
    : comm_(OwnComm::split_host(world.get(), max_ranks)),
      world_ranks_(static_cast<size_t>(comm_.size())),
      leaders_(static_cast<size_t>(world.size())),
      crowded_(is_crowded(comm_)) {
  const int own = world.rank();
  check_mpi(MPI_Allgather(&own, 1, MPI_INT, world_ranks_.data(), 1, MPI_INT, comm_.get()));
  check_mpi(MPI_Allgather(&world_ranks_[0], 1, MPI_INT, leaders_.data(), 1, MPI_INT, world.get()));
  if (!wants_windows) window_error_ = "shared windows are switched off";
  int refused = 0;
  try {
    if (wants_windows)
      control_ = std::make_unique<Window>(comm_, num_slots * static_cast<int64_t>(sizeof(Arrival)), -1);
  } catch (const WindowError& error) {
    window_error_ = error.what();
    refused = 1;
  }
  // All hosts or none, so that all ranks choose the same plans.
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &refused, 1, MPI_INT, MPI_MAX, world.get()));
  if (refused != 0 && window_error_.empty()) window_error_ = "another host has no shared memory for windows";
  if (control_ && refused == 0) {
    std::vector<Arrival*> lines;
    for (int rank = 0; rank < size(); ++rank)
      lines.push_back(reinterpret_cast<Arrival*>(control_->slab(rank)));
    barriers_.emplace(std::move(lines), num_slots, local_rank());
  }
}

std::shared_ptr<Window> Host::allocate(int64_t bytes) {
  if (!has_windows()) throw WindowError(window_error_);
  return std::make_shared<Window>(comm_, bytes, num_windows_++);
}

}  // namespace ddltrain
