#include "transport.h"

#include <algorithm>
#include <bit>
#include <string>

namespace ddltrain {

namespace {

constexpr int max_slot_bits = 4;
constexpr int max_signature_bits = 7;

}  // namespace

Staging* StagingPool::take(int64_t bytes) {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Staging>());
    free_.push_back(all_.back().get());
  }
  Staging* staging = free_.back();
  free_.pop_back();
  if (staging->bytes < bytes) {
    staging->memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    staging->bytes = bytes;
  }
  return staging;
}

void StagingPool::give(Staging* staging) {
  if (staging != nullptr) free_.push_back(staging);
}

Transport::Transport(MPI_Comm parent)
    : comm_(OwnComm::duplicate(parent)), sends_to_(static_cast<size_t>(comm_.size())) {
  int* upper_bound = nullptr;
  int known = 0;
  // Of the world, since MPI attaches it to no other communicator.
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&upper_bound), &known));
  const auto largest = static_cast<unsigned>(known != 0 ? *upper_bound : 32767);
  const int bits = std::bit_width(largest) - (std::has_single_bit(largest + 1U) ? 0 : 1);
  if (bits < Plan::tag_bits) {
    throw MpiError("this MPI has tags up to " + std::to_string(largest) + " only; 2^20 are needed");
  }
  slot_bits_ = std::min(max_slot_bits, bits - Plan::tag_bits);
  signature_bits_ = std::min(max_signature_bits, bits - Plan::tag_bits - slot_bits_);
}

int Transport::tag(int slot, uint64_t signature, int plan_tag) const {
  const auto mark = static_cast<int>(signature & ((uint64_t{1} << signature_bits_) - 1));
  return ((mark << slot_bits_ | slot) << Plan::tag_bits) | plan_tag;
}

void Transport::send(const Message& message, const void* data, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  // Not MPI_Isend: with two links between hosts Open MPI 5.0 takes two turns for each of its short messages,
  // and so sends all of them over the same link.
  check_mpi(MPI_Send_init(data, static_cast<int>(message.bytes), MPI_BYTE, message.peer, tag, comm_.get(),
                          &request));
  check_mpi(MPI_Start(&request));
  requests_.push_back(request);
  messages_.push_back(message);
  ++sends_to_[static_cast<size_t>(message.peer)];
}

void Transport::receive(const Message& message, void* data, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Irecv(data, static_cast<int>(message.bytes), MPI_BYTE, message.peer, tag, comm_.get(), &request));
  requests_.push_back(request);
  messages_.push_back(message);
}

int Transport::test_some() {
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int num_done = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_done, done_.data(),
                                statuses_.data());
  if (code != MPI_ERR_IN_STATUS) {
    check_mpi(code);
    return num_done == MPI_UNDEFINED ? 0 : num_done;
  }
  for (int i = 0; i < num_done; ++i) {
    const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    const Message& message = messages_[static_cast<size_t>(done_[static_cast<size_t>(i)])];
    throw MpiError(std::string(message.is_send ? "sending to" : "receiving from") + " rank " +
                   std::to_string(message.peer) + " failed: " + mpi_error_text(error));
  }
  return num_done;
}

Message Transport::take_done(int i) {
  const auto place = static_cast<size_t>(done_[static_cast<size_t>(i)]);
  const Message message = messages_[place];
  if (message.is_send) {
    check_mpi(MPI_Request_free(&requests_[place]));
    --sends_to_[static_cast<size_t>(message.peer)];
    return message;
  }
  int bytes = 0;
  check_mpi(MPI_Get_count(&statuses_[static_cast<size_t>(i)], MPI_BYTE, &bytes));
  if (bytes != message.bytes) {
    throw MpiError("rank " + std::to_string(message.peer) + " sent " + std::to_string(bytes) +
                   " bytes where " + std::to_string(message.bytes) +
                   " were due: ranks call different operations");
  }
  return message;
}

void Transport::compact() {
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    messages_[kept++] = messages_[i];
  }
  requests_.resize(kept);
  messages_.resize(kept);
}

void Transport::abandon() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    // Codes do not matter any more: this is the way out after an error.
    if (!messages_[i].is_send) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  // MPI may still write into staging memory, so it is never freed.
  if (!requests_.empty()) new StagingPool(std::move(staging_));
  requests_.clear();
  messages_.clear();
  comm_.leak();
}

}  // namespace ddltrain
