// Messages under way: their MPI requests, the memory they are staged in, and how many go to each peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpi_check.h"
#include "plan.h"

namespace ddltrain {

// Memory for messages that do not go straight from or to the user's; kept for later messages.
struct Staging {
  std::unique_ptr<std::byte[]> memory;
  int64_t bytes = 0;
};

class StagingPool {
 public:
  Staging* take(int64_t bytes);
  void give(Staging* staging);

 private:
  std::vector<std::unique_ptr<Staging>> all_;
  std::vector<Staging*> free_;
};

struct Message {
  int slot;  // of the operation
  int row;   // in its plan
  int peer;
  int64_t bytes;
  Staging* staging;  // null where the message goes straight from or to the user's memory
  bool is_send;
};

class Transport {
 public:
  explicit Transport(MPI_Comm parent);

  const OwnComm& comm() const { return comm_; }
  StagingPool& staging() { return staging_; }
  int num_slots() const { return 1 << slot_bits_; }
  // Tells messages of different operations apart, and, as far as the bits go, operations that differ in size
  // or dtype: these do not meet, and time out, rather than give wrong sums.
  int tag(int slot, uint64_t signature, int plan_tag) const;
  int sends_to(int peer) const { return sends_to_[static_cast<size_t>(peer)]; }

  void send(const Message& message, const void* data, int tag);
  void receive(const Message& message, void* data, int tag);
  // Messages that have come or gone so far.
  int64_t num_finished() const { return num_finished_; }
  bool idle() const { return requests_.empty(); }
  // Hands every message that is done to `finish`; returns whether there was one.
  template <typename Finish>
  bool poll(Finish finish) {
    const int num_done = test_some();
    for (int i = 0; i < num_done; ++i) finish(take_done(i));
    if (num_done > 0) compact();
    num_finished_ += num_done;
    return num_done > 0;
  }
  // Forgets all messages. The communicator cannot be used after that.
  void abandon();

 private:
  int test_some();
  Message take_done(int i);
  void compact();

  OwnComm comm_;
  int slot_bits_ = 0;
  int signature_bits_ = 0;
  int64_t num_finished_ = 0;
  StagingPool staging_;
  std::vector<int> sends_to_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;  // one for each request
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace ddltrain
