// As much of MPI as the executor uses, for ranks that are threads of one process: with it, sanitizers see
// everything. Messages are copied at once, and each rank has a handle of its own on a communicator.
#pragma once

#include <cstddef>
#include <cstdint>

struct ThreadComm;
struct ThreadRequest;
using MPI_Comm = ThreadComm*;
using MPI_Request = ThreadRequest*;
using MPI_Info = void*;
struct MPI_Status {
  int MPI_ERROR;
  int bytes;
};

// A datatype is its size.
enum MPI_Datatype { MPI_BYTE = 1, MPI_INT = 4, MPI_INT64_T = 8 };
enum MPI_Op { MPI_MAX, MPI_BOR };
enum MPI_Errhandler { MPI_ERRORS_RETURN };

inline constexpr MPI_Comm MPI_COMM_NULL = nullptr, MPI_COMM_WORLD = nullptr;
inline constexpr MPI_Request MPI_REQUEST_NULL = nullptr;
inline constexpr MPI_Info MPI_INFO_NULL = nullptr;
inline constexpr int MPI_SUCCESS = 0, MPI_ERR_PENDING = 1, MPI_ERR_IN_STATUS = 2;
inline constexpr int MPI_COMM_TYPE_SHARED = 0, MPI_TAG_UB = 0, MPI_UNDEFINED = -1;
inline constexpr int MPI_THREAD_SINGLE = 0, MPI_THREAD_MULTIPLE = 3;
inline constexpr int MPI_MAX_ERROR_STRING = 64, MPI_MAX_LIBRARY_VERSION_STRING = 64;
inline void* const MPI_IN_PLACE = reinterpret_cast<void*>(1);

int MPI_Query_thread(int* level);
int MPI_Finalized(int* flag);
int MPI_Get_library_version(char* text, int* length);
int MPI_Error_string(int code, char* text, int* length);
int MPI_Abort(MPI_Comm comm, int code);

int MPI_Comm_rank(MPI_Comm comm, int* rank);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy);
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part);
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part);
int MPI_Comm_free(MPI_Comm* comm);
int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler);
int MPI_Comm_get_attr(MPI_Comm comm, int key, void* value, int* flag);

int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Allgather(const void* own, int count, MPI_Datatype type, void* all, int all_count,
                  MPI_Datatype all_type, MPI_Comm comm);
int MPI_Allreduce(const void* own, void* result, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);

int MPI_Send_init(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                  MPI_Request* request);
int MPI_Start(MPI_Request* request);
int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request);
int MPI_Testsome(int count, MPI_Request* requests, int* num_done, int* indices, MPI_Status* statuses);
int MPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count);
int MPI_Cancel(MPI_Request* request);
int MPI_Request_free(MPI_Request* request);
