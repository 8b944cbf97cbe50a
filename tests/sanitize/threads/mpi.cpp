#include "mpi.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "ranks.h"

namespace {

using Bytes = std::vector<std::byte>;

struct Letter {
  int from, to, tag;
  Bytes data;
};

// What the ranks of a communicator share.
struct Group {
  explicit Group(int size) : contributions(static_cast<size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Bytes> contributions;
  int num_arrived = 0, num_left = 0;
  std::list<Letter> letters;
};

}  // namespace

struct ThreadComm {
  std::shared_ptr<Group> group;
  int rank;

  int size() const { return static_cast<int>(group->contributions.size()); }
};

struct ThreadRequest {
  std::shared_ptr<Group> group;
  int from, to, tag;
  std::byte* received;    // null where it is sent
  const std::byte* sent;  // null where it is received
  size_t bytes;
};

namespace {

// Gives every rank what each of them brought.
std::vector<Bytes> exchange(MPI_Comm comm, const void* data, size_t bytes) {
  Group& group = *comm->group;
  const int size = comm->size();
  std::unique_lock lock(group.mutex);
  group.changed.wait(lock, [&] { return group.num_left == 0; });  // the exchange before is over
  const auto* begin = static_cast<const std::byte*>(data);
  group.contributions[static_cast<size_t>(comm->rank)].assign(begin, begin + bytes);
  if (++group.num_arrived == size) {
    group.num_arrived = 0;
    group.num_left = size;
    group.changed.notify_all();
  }
  group.changed.wait(lock, [&] { return group.num_left > 0; });
  auto all = group.contributions;
  if (--group.num_left == 0) group.changed.notify_all();
  return all;
}

template <typename T>
std::vector<T> exchange(MPI_Comm comm, const T& own) {
  std::vector<T> values;
  for (const Bytes& bytes : exchange(comm, &own, sizeof(T))) {
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof(T));
  }
  return values;
}

size_t as_size(int count) { return static_cast<size_t>(count); }

int write(std::string_view words, char* text, int* length) {
  *length = static_cast<int>(words.copy(text, words.size()));
  return MPI_SUCCESS;
}

}  // namespace

std::vector<MPI_Comm> make_ranks(int size) {
  const auto group = std::make_shared<Group>(size);
  std::vector<MPI_Comm> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(new ThreadComm{group, rank});
  return ranks;
}

int MPI_Query_thread(int* level) { return *level = MPI_THREAD_MULTIPLE, MPI_SUCCESS; }
int MPI_Finalized(int* flag) { return *flag = 0, MPI_SUCCESS; }
int MPI_Get_library_version(char* text, int* length) { return write("threads", text, length); }
int MPI_Error_string(int, char* text, int* length) { return write("an error", text, length); }
int MPI_Abort(MPI_Comm, int code) { std::_Exit(code); }

int MPI_Comm_rank(MPI_Comm comm, int* rank) { return *rank = comm->rank, MPI_SUCCESS; }
int MPI_Comm_size(MPI_Comm comm, int* size) { return *size = comm->size(), MPI_SUCCESS; }
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) { return MPI_Comm_split(comm, 0, 0, copy); }
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return MPI_SUCCESS; }

int MPI_Comm_split(MPI_Comm comm, int color, int, MPI_Comm* part) {
  const auto colors = exchange(comm, color);
  const auto first = static_cast<int>(std::find(colors.begin(), colors.end(), color) - colors.begin());
  const auto size = static_cast<int>(std::count(colors.begin(), colors.end(), color));
  const auto rank = static_cast<int>(std::count(colors.begin(), colors.begin() + comm->rank, color));
  const auto made = first == comm->rank ? std::make_shared<Group>(size) : nullptr;
  const auto groups = exchange(comm, &made);
  *part = new ThreadComm{*groups[static_cast<size_t>(first)], rank};
  return MPI_Barrier(comm);  // so that `made` lives until all have it
}

int MPI_Comm_split_type(MPI_Comm comm, int, int key, MPI_Info, MPI_Comm* part) {
  return MPI_Comm_split(comm, 0, key, part);
}

int MPI_Comm_free(MPI_Comm* comm) {
  delete *comm;
  *comm = nullptr;
  return MPI_SUCCESS;
}

int MPI_Comm_get_attr(MPI_Comm, int, void* value, int* flag) {
  static int largest_tag = (1 << 30) - 1;
  *static_cast<int**>(value) = &largest_tag;
  *flag = 1;
  return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) { return exchange(comm, nullptr, 0), MPI_SUCCESS; }

int MPI_Bcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  const auto bytes = static_cast<size_t>(count) * type;
  const auto all = exchange(comm, data, comm->rank == root ? bytes : 0);
  std::memcpy(data, all[static_cast<size_t>(root)].data(), bytes);
  return MPI_SUCCESS;
}

int MPI_Allgather(const void* own, int count, MPI_Datatype type, void* all, int, MPI_Datatype,
                  MPI_Comm comm) {
  auto* out = static_cast<std::byte*>(all);
  for (const Bytes& bytes : exchange(comm, own, static_cast<size_t>(count) * type)) {
    out = std::copy(bytes.begin(), bytes.end(), out);
  }
  return MPI_SUCCESS;
}

int MPI_Allreduce(const void*, void* result, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  for (const Bytes& bytes : exchange(comm, result, static_cast<size_t>(count) * type)) {
    for (int i = 0; i < count; ++i) {
      if (op == MPI_BOR) static_cast<std::byte*>(result)[i] |= bytes[static_cast<size_t>(i)];
      if (op != MPI_MAX) continue;
      int other = 0;
      std::memcpy(&other, &bytes[static_cast<size_t>(i) * sizeof(int)], sizeof(int));
      static_cast<int*>(result)[i] = std::max(static_cast<int*>(result)[i], other);
    }
  }
  return MPI_SUCCESS;
}

int MPI_Send_init(const void* data, int count, MPI_Datatype, int peer, int tag, MPI_Comm comm,
                  MPI_Request* request) {
  *request = new ThreadRequest{
      comm->group, comm->rank, peer, tag, nullptr, static_cast<const std::byte*>(data), as_size(count)};
  return MPI_SUCCESS;
}

int MPI_Start(MPI_Request* request) {
  const ThreadRequest& send = **request;
  const std::lock_guard lock(send.group->mutex);
  send.group->letters.push_back({send.from, send.to, send.tag, Bytes(send.sent, send.sent + send.bytes)});
  return MPI_SUCCESS;
}

int MPI_Irecv(void* data, int count, MPI_Datatype, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  *request = new ThreadRequest{comm->group, peer,          comm->rank, tag, static_cast<std::byte*>(data),
                               nullptr,     as_size(count)};
  return MPI_SUCCESS;
}

int MPI_Testsome(int count, MPI_Request* requests, int* num_done, int* indices, MPI_Status* statuses) {
  *num_done = 0;
  for (int i = 0; i < count; ++i) {
    ThreadRequest& request = *requests[i];
    MPI_Status status{MPI_SUCCESS, 0};
    const bool is_send = request.sent != nullptr;
    if (!is_send) {
      const std::lock_guard lock(request.group->mutex);
      auto& letters = request.group->letters;
      const auto letter = std::find_if(letters.begin(), letters.end(), [&](const Letter& one) {
        return one.from == request.from && one.to == request.to && one.tag == request.tag;
      });
      if (letter == letters.end()) continue;
      status.bytes = static_cast<int>(letter->data.size());
      std::copy_n(letter->data.begin(), std::min(letter->data.size(), request.bytes), request.received);
      letters.erase(letter);
    }
    statuses[*num_done] = status;
    indices[(*num_done)++] = i;
    if (!is_send) MPI_Request_free(&requests[i]);  // one that was started stays
  }
  return MPI_SUCCESS;
}

int MPI_Get_count(const MPI_Status* status, MPI_Datatype, int* count) {
  return *count = status->bytes, MPI_SUCCESS;
}

int MPI_Cancel(MPI_Request*) { return MPI_SUCCESS; }

int MPI_Request_free(MPI_Request* request) {
  delete *request;
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}
