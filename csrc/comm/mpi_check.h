// Every return code of MPI is looked at, and becomes an exception.
#pragma once

#include <mpi.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace ddltrain {

// An MPI call failed, ranks disagree, or a rank does not come.
class MpiError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string mpi_error_text(int code);

// Throws MpiError with MPI's own text and the place of the call, unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::source_location place = std::source_location::current());

// Name and version of the MPI library that this module runs on.
std::string mpi_library_version();

// A communicator that is ours alone: freed at the end, errors come back as codes.
class OwnComm {
 public:
  explicit OwnComm(MPI_Comm comm);
  ~OwnComm();
  OwnComm(const OwnComm&) = delete;
  OwnComm& operator=(const OwnComm&) = delete;

  static MPI_Comm duplicate(MPI_Comm parent);
  // The ranks of this host; or, where `max_ranks` is not 0, at most so many of them, neighbours by rank.
  static MPI_Comm split_host(MPI_Comm parent, int max_ranks);

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Leaves the communicator alone at the end, because messages of it are still under way.
  void leak() { leaked_ = true; }

 private:
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  bool leaked_ = false;
};

}  // namespace ddltrain
