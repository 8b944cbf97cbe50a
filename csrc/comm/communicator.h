// What the ranks of a job send each other: a thin, checked layer over a communicator of our own.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace ddltrain {

// An MPI call failed, or a caller broke a rule of this module.
class MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws MpiError with MPI's own text and the place of the call, unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::source_location place = std::source_location::current());

enum class DType { float32, float64, int32, int64 };

int64_t dtype_bytes(DType dtype);

// A duplicate of the parent's communicator, so that no message of ours meets one of the caller's.
// Every method is collective and blocks; none touches Python.
class Communicator {
 public:
  // Messages are cut to at most `max_message_bytes`, because MPI counts in 32-bit integers.
  Communicator(MPI_Comm parent, int64_t max_message_bytes);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Replaces `count` elements at `data` by their sum over all ranks.
  void allreduce_sum(void* data, int64_t count, DType dtype);
  // Replaces `bytes` bytes at `data` by those of rank `root`.
  void broadcast(void* data, int64_t bytes, int root);
  void barrier();

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int world_size_ = 1;
  int64_t max_message_bytes_;
};

// Name and version of the MPI library that this module runs on.
std::string mpi_library_version();

}  // namespace ddltrain
