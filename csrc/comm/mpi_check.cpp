#include "mpi_check.h"

#include <array>

namespace ddltrain {

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

void check_mpi(int code, std::source_location place) {
  if (code == MPI_SUCCESS) return;
  throw MpiError(mpi_error_text(code) + " (in " + place.function_name() + ")");
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length));
  return {text.data(), static_cast<size_t>(length)};
}

OwnComm::OwnComm(MPI_Comm comm) : comm_(comm) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

OwnComm::~OwnComm() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !leaked_) MPI_Comm_free(&comm_);
}

MPI_Comm OwnComm::duplicate(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &comm));
  return comm;
}

MPI_Comm OwnComm::split_host(MPI_Comm parent, int max_ranks) {
  MPI_Comm whole = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &whole));
  if (max_ranks == 0) return whole;
  const OwnComm host(whole);
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(whole, host.rank() / max_ranks, 0, &part));
  return part;
}

}  // namespace ddltrain
