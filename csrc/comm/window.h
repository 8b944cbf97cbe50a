// Memory that all ranks of a host share: one slab per rank, which the others read and write in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi_check.h"

namespace ddltrain {

// Windows cannot be had here; messages still can.
class WindowError : public MpiError {
 public:
  using MpiError::MpiError;
};

// An anonymous memory file, so it has no name that could outlive the ranks: when the last of them ends, in
// whatever way, the memory is gone.
class Window {
 public:
  // Collective over `host`, the ranks of this host. All slabs have the same size; they start as zeros.
  Window(const OwnComm& host, int64_t bytes, int id);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Counts the windows of an executor; the same on all ranks.
  int id() const { return id_; }
  int64_t bytes() const { return bytes_; }
  std::byte* slab(int local_rank) const { return slabs_[static_cast<size_t>(local_rank)]; }
  std::byte* own() const { return slab(own_rank_); }
  bool holds(const void* address, int64_t bytes) const;

 private:
  int id_;
  int own_rank_;
  int64_t bytes_;
  int64_t mapped_bytes_ = 0;
  void* base_ = nullptr;
  std::vector<std::byte*> slabs_;
};

}  // namespace ddltrain
