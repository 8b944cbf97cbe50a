#include "window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace ddltrain {

namespace {

constexpr int64_t huge_page_bytes = int64_t{1} << 21;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// The first rank makes the file; the others open it through the first one's process.
int open_shared(const OwnComm& host, int64_t bytes, int& error) {
  std::array<int64_t, 2> place{getpid(), -1};
  int descriptor = -1;
  if (host.rank() == 0) {
    descriptor = memfd_create("ddltrain", MFD_CLOEXEC);
    if (descriptor >= 0 && ftruncate(descriptor, bytes) == 0) {
      place[1] = descriptor;
    } else {
      error = errno;
    }
  }
  check_mpi(MPI_Bcast(place.data(), 2, MPI_INT64_T, 0, host.get()));
  if (host.rank() != 0 && place[1] >= 0) {
    const std::string path = "/proc/" + std::to_string(place[0]) + "/fd/" + std::to_string(place[1]);
    descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) error = errno;
  }
  return descriptor;
}

// The first error among the ranks, the same on all of them.
int agree_on_error(const OwnComm& host, int error) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_INT, MPI_MAX, host.get()));
  return error;
}

}  // namespace

Window::Window(const OwnComm& host, int64_t bytes, int id) : id_(id), own_rank_(host.rank()), bytes_(bytes) {
  // Slabs that start at huge pages: fewer misses in the translation buffer, and no page with two owners.
  const int64_t unit = bytes >= huge_page_bytes ? huge_page_bytes : sysconf(_SC_PAGESIZE);
  const int64_t slab_bytes = (bytes + unit - 1) / unit * unit;
  mapped_bytes_ = slab_bytes * host.size();
  int error = 0;
  const File file(open_shared(host, mapped_bytes_, error));
  void* base = MAP_FAILED;
  if (file.get() >= 0 && error == 0 && mapped_bytes_ > 0) {
    base =
        mmap(nullptr, static_cast<size_t>(mapped_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (base == MAP_FAILED) error = errno;
  }
  if (base != MAP_FAILED) base_ = base;
  error = agree_on_error(host, error);
  if (error != 0) {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(mapped_bytes_));
    throw WindowError("no shared memory of " + std::to_string(mapped_bytes_) +
                      " bytes on this host: " + std::strerror(error));
  }
  for (int rank = 0; rank < host.size(); ++rank) {
    slabs_.push_back(static_cast<std::byte*>(base_) + slab_bytes * rank);
  }
  if (base_ != nullptr) {
    madvise(base_, static_cast<size_t>(mapped_bytes_), MADV_HUGEPAGE);  // a wish: refusal is no error
    std::memset(own(), 0, static_cast<size_t>(bytes_));  // by its owner, so that pages lie near it
  }
  check_mpi(MPI_Barrier(host.get()));
}

Window::~Window() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(mapped_bytes_));
}

bool Window::holds(const void* address, int64_t bytes) const {
  const auto start = reinterpret_cast<uintptr_t>(own());
  const auto first = reinterpret_cast<uintptr_t>(address);
  return first >= start && first + static_cast<uintptr_t>(bytes) <= start + static_cast<uintptr_t>(bytes_);
}

}  // namespace ddltrain
