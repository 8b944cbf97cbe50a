// The MPI library's own collectives: the baseline and the oracle, and the broadcast of everything else.
#pragma once

#include <cstdint>

#include "mpi_check.h"
#include "types.h"

namespace ddltrain {

// A duplicate of the parent's communicator, so that no message of ours meets one of the caller's.
// Every method is collective and blocks; none touches Python.
class Communicator {
 public:
  // Messages are cut to at most `max_message_bytes`, because MPI counts in 32-bit integers.
  Communicator(MPI_Comm parent, int64_t max_message_bytes);

  int rank() const { return comm_.rank(); }
  int world_size() const { return comm_.size(); }

  // Replaces `count` elements at `data` by their reduction over all ranks. Neither 16-bit dtypes nor avg.
  void allreduce(void* data, int64_t count, DType dtype, ReduceOp op);
  // Replaces `bytes` bytes at `data` by those of rank `root`.
  void broadcast(void* data, int64_t bytes, int root);
  void barrier();

 private:
  OwnComm comm_;
  int64_t max_message_bytes_;
};

}  // namespace ddltrain
