#include "communicator.h"

#include <algorithm>
#include <array>
#include <string>

namespace ddltrain {

namespace {

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return MPI_FLOAT;
    case DType::float64:
      return MPI_DOUBLE;
    case DType::int32:
      return MPI_INT32_T;
    case DType::int64:
      return MPI_INT64_T;
  }
  throw MpiError("unknown dtype");
}

// Calls piece(pointer, count) over `count` elements in pieces of at most `max_count`.
template <typename Piece>
void for_each_piece(void* data, int64_t count, int64_t element_bytes, int64_t max_count, Piece piece) {
  auto* bytes = static_cast<char*>(data);
  for (int64_t done = 0; done < count; done += max_count) {
    piece(bytes + done * element_bytes, static_cast<int>(std::min(max_count, count - done)));
  }
}

}  // namespace

void check_mpi(int code, std::source_location place) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw MpiError(std::string(text.data(), static_cast<size_t>(length)) + " (in " + place.function_name() +
                 ")");
}

int64_t dtype_bytes(DType dtype) { return dtype == DType::float32 || dtype == DType::int32 ? 4 : 8; }

Communicator::Communicator(MPI_Comm parent, int64_t max_message_bytes)
    : max_message_bytes_(max_message_bytes) {
  if (max_message_bytes < 8 || max_message_bytes > (int64_t{1} << 30)) {
    throw MpiError("max_message_bytes is " + std::to_string(max_message_bytes) + "; it takes 8 to 2^30");
  }
  check_mpi(MPI_Comm_dup(parent, &comm_));
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &world_size_));
}

Communicator::~Communicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

void Communicator::allreduce_sum(void* data, int64_t count, DType dtype) {
  const int64_t element_bytes = dtype_bytes(dtype);
  const MPI_Datatype type = mpi_type(dtype);
  for_each_piece(data, count, element_bytes, max_message_bytes_ / element_bytes,
                 [&](void* piece, int piece_count) {
                   check_mpi(MPI_Allreduce(MPI_IN_PLACE, piece, piece_count, type, MPI_SUM, comm_));
                 });
}

void Communicator::broadcast(void* data, int64_t bytes, int root) {
  for_each_piece(data, bytes, 1, max_message_bytes_, [&](void* piece, int piece_bytes) {
    check_mpi(MPI_Bcast(piece, piece_bytes, MPI_BYTE, root, comm_));
  });
}

void Communicator::barrier() { check_mpi(MPI_Barrier(comm_)); }

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length));
  return std::string(text.data(), static_cast<size_t>(length));
}

}  // namespace ddltrain
