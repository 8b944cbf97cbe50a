#include "communicator.h"

#include <algorithm>
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
    default:
      throw MpiError(std::string("MPI cannot reduce ") + dtype_name(dtype));
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    default:
      throw MpiError("MPI has no average");
  }
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

Communicator::Communicator(MPI_Comm parent, int64_t max_message_bytes)
    : comm_(OwnComm::duplicate(parent)), max_message_bytes_(max_message_bytes) {
  if (max_message_bytes < 8 || max_message_bytes > (int64_t{1} << 30)) {
    throw MpiError("max_message_bytes is " + std::to_string(max_message_bytes) + "; it takes 8 to 2^30");
  }
}

void Communicator::allreduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  const int64_t element_bytes = dtype_bytes(dtype);
  const MPI_Datatype type = mpi_type(dtype);
  const MPI_Op operation = mpi_op(op);
  for_each_piece(data, count, element_bytes, max_message_bytes_ / element_bytes,
                 [&](void* piece, int piece_count) {
                   check_mpi(MPI_Allreduce(MPI_IN_PLACE, piece, piece_count, type, operation, comm_.get()));
                 });
}

void Communicator::broadcast(void* data, int64_t bytes, int root) {
  for_each_piece(data, bytes, 1, max_message_bytes_, [&](void* piece, int piece_bytes) {
    check_mpi(MPI_Bcast(piece, piece_bytes, MPI_BYTE, root, comm_.get()));
  });
}

void Communicator::barrier() { check_mpi(MPI_Barrier(comm_.get())); }

}  // namespace ddltrain
