#include "operation.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "reduce.h"

namespace ddltrain {

namespace {

// Local work between two looks at the network.
constexpr int64_t budget_bytes_per_advance = 512 << 10;

void push(std::vector<int>& heap, int row) {
  heap.push_back(row);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

int pop(std::vector<int>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const int row = heap.back();
  heap.pop_back();
  return row;
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

}  // namespace

void Operation::start(Submission submission) {
  call_ = std::move(submission);
  const Plan& plan = *call_.plan;
  active_ = moved_ = true;
  barrier_row_ = -1;
  local_done_ = 0;
  awaited_ = plan.num_awaited();
  received_.assign(plan.ops().size(), nullptr);
  done_.assign(plan.ops().size(), false);
  first_undone_ = 0;
  links_.resize(plan.peers().size());
  for (Link& link : links_) link.newest_receive = link.newest_send = -1;
  uint64_t hash = mix(plan.key(), static_cast<uint64_t>(call_.number));
  hash = mix(hash, static_cast<uint64_t>(call_.count));
  for (const int word :
       {static_cast<int>(call_.dtype), static_cast<int>(call_.op), static_cast<int>(call_.wire)}) {
    hash = mix(hash, static_cast<uint64_t>(word));
  }
  // Of operations of the same size, only their names can tell that ranks have them in another order.
  for (const char letter : call_.name) hash = mix(hash, static_cast<uint64_t>(letter));
  signature_ = mix(hash, 0);
  factor_ = call_.op == ReduceOp::avg ? 1.0 / transport_.comm().size() : 1.0;
  // Every contribution is scaled once, and before the first sum: by the rank that reduces its host's windows,
  // else by its owner.
  const bool is_reduced_locally = plan.reduces_locally() || (plan.uses_window() && host_.size() > 1);
  unscaled_ = factor_ != 1 && !is_reduced_locally ? call_.count : 0;
  if (plan.uses_window()) {
    const auto offset = call_.data - call_.window->own();
    local_signature_ =
        mix(mix(signature_, static_cast<uint64_t>(call_.window->id())), static_cast<uint64_t>(offset));
    slabs_.clear();
    for (int rank = 0; rank < host_.size(); ++rank) slabs_.push_back(call_.window->slab(rank) + offset);
  }
  if (unscaled_ == 0) begin_phase(0);
}

void Operation::end() {
  active_ = false;
  call_.window.reset();
}

int64_t Operation::message_bytes(int64_t count) const {
  return count * dtype_bytes(converts() ? wire_dtype(call_.wire) : call_.dtype);
}

void Operation::begin_phase(int phase) {
  phase_ = phase;
  if (phase == call_.plan->num_phases()) {
    // Of ranks that computed the same value, only some may have sent it and rounded it.
    unrounded_ = converts() ? call_.count : 0;
    if (unrounded_ == 0) end();
    return;
  }
  const int begin = call_.plan->phase_begin(phase), end = call_.plan->phase_begin(phase + 1);
  remaining_ = end - begin;
  for (int row = begin; row < end; ++row) {
    if (op(row).kind == Kind::recv_reduce) {
      push(links_[static_cast<size_t>(op(row).link)].receives, row);  // into staging, so nothing to wait for
    } else if (awaited_[static_cast<size_t>(row)] == 0) {
      make_ready(row);
    }
  }
}

void Operation::make_ready(int row) {
  switch (op(row).kind) {
    case Kind::send:
      return push(links_[static_cast<size_t>(op(row).link)].sends, row);
    case Kind::recv:
      return push(links_[static_cast<size_t>(op(row).link)].receives, row);
    case Kind::recv_reduce:
      return reduce_received(row);
    case Kind::local_barrier:
      barrier_row_ = row;
      return host_.barriers().arrive(slot_, local_signature_);
    default:
      return push(local_rows_, row);
  }
}

void Operation::complete(int row) {
  moved_ = true;
  done_[static_cast<size_t>(row)] = true;
  while (static_cast<size_t>(first_undone_) < done_.size() && done_[static_cast<size_t>(first_undone_)]) {
    ++first_undone_;
  }
  for (const int dependent : call_.plan->dependents(row)) {
    if (--awaited_[static_cast<size_t>(dependent)] == 0) make_ready(dependent);
  }
  if (--remaining_ == 0) begin_phase(phase_ + 1);
}

void Operation::reduce_received(int row) {
  Staging* staging = std::exchange(received_[static_cast<size_t>(row)], nullptr);
  const std::byte* other = staging->memory.get();
  if (converts()) {
    reduce_wire_into(reinterpret_cast<float*>(range(row)), other, op(row).count, call_.wire, call_.op);
  } else {
    reduce_into(range(row), other, op(row).count, call_.dtype, call_.op);
  }
  transport_.staging().give(staging);
  --links_[static_cast<size_t>(op(row).link)].num_receives;
  complete(row);
}

void Operation::finish(const Message& message) {
  const int row = message.row;
  Link& link = links_[static_cast<size_t>(op(row).link)];
  if (op(row).kind == Kind::recv_reduce) {
    moved_ = true;
    received_[static_cast<size_t>(row)] = message.staging;
    if (--awaited_[static_cast<size_t>(row)] == 0) reduce_received(row);
    return;
  }
  if (op(row).kind == Kind::recv) {
    --link.num_receives;
    if (converts()) {
      unpack(reinterpret_cast<float*>(range(row)), message.staging->memory.get(), op(row).count, call_.wire);
    }
  } else {
    --link.num_sends;
  }
  transport_.staging().give(message.staging);
  complete(row);
}

bool Operation::advance() {
  bool progressed = false;
  int64_t budget_bytes = budget_bytes_per_advance;
  while (active_ && budget_bytes > 0 && step(budget_bytes)) progressed = true;
  return (active_ && post()) || progressed;
}

bool Operation::step(int64_t& budget_bytes) {
  if (unscaled_ > 0) return scale_some(budget_bytes);
  if (unrounded_ > 0) return round_some(budget_bytes);
  if (barrier_row_ >= 0) return test_barrier();
  if (local_rows_.empty()) return false;
  work_locally(budget_bytes);
  return true;
}

bool Operation::scale_some(int64_t& budget_bytes) {
  const int64_t count = std::min(unscaled_, std::max<int64_t>(1, budget_bytes / dtype_bytes(call_.dtype)));
  scale(call_.data + bytes_of(call_.count - unscaled_), count, call_.dtype, factor_);
  unscaled_ -= count;
  budget_bytes -= bytes_of(count);
  moved_ = true;
  if (unscaled_ == 0) begin_phase(0);
  return true;
}

bool Operation::round_some(int64_t& budget_bytes) {
  const int64_t count = std::min(unrounded_, budget_bytes / dtype_bytes(call_.dtype) + 1);
  round_to(reinterpret_cast<float*>(call_.data) + (call_.count - unrounded_), count, call_.wire);
  unrounded_ -= count;
  budget_bytes -= bytes_of(count);
  moved_ = true;
  if (unrounded_ == 0) end();
  return true;
}

bool Operation::test_barrier() {
  if (!host_.barriers().test(slot_)) return false;
  if (const int odd = host_.barriers().odd_one(slot_); odd >= 0) {
    throw MpiError("rank " + std::to_string(host_.world_rank(odd)) + " calls operation " +
                   std::to_string(call_.number) +
                   " with another size, dtype, reduction or place in the window than this rank");
  }
  complete(std::exchange(barrier_row_, -1));
  return true;
}

void Operation::work_locally(int64_t& budget_bytes) {
  const int row = local_rows_.front();
  const int64_t per_element = dtype_bytes(call_.dtype) * host_.size();
  const int64_t left = op(row).count - local_done_;
  const int64_t count = std::min(left, std::max<int64_t>(1, budget_bytes / per_element));
  run_local(op(row), op(row).offset + local_done_, count);
  budget_bytes -= count * per_element;
  local_done_ += count;
  moved_ = true;
  if (count == left) {
    local_done_ = 0;
    complete(pop(local_rows_));
  }
}

void Operation::run_local(const PlanOp& op, int64_t offset, int64_t count) {
  for (std::byte*& slab : slabs_) slab += bytes_of(offset);
  const auto own = static_cast<size_t>(host_.local_rank());
  const std::span<std::byte* const> all(slabs_);
  if (op.kind == Kind::local_spread) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (rank != own) std::memcpy(all[rank], all[own], static_cast<size_t>(bytes_of(count)));
    }
  } else {
    const bool spreads = op.kind == Kind::local_reduce_spread;
    reduce_ranks(all, spreads ? all : all.subspan(own, 1), count, call_.dtype, call_.op, factor_);
  }
  for (std::byte*& slab : slabs_) slab -= bytes_of(offset);
}

bool Operation::post() {
  bool posted = false;
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    const int peer = call_.plan->peers()[i];
    // The limits hold for what lies ahead. A message that became ready late is due first, at both ends: it
    // must not wait for later ones, which its peer may not take before it.
    while (!link.receives.empty() &&
           (link.num_receives < limits_.receives || link.receives.front() < link.newest_receive)) {
      post_receive(pop(link.receives));
      posted = true;
    }
    // The limit on sends is shared by all operations; each may have one, so that none waits for another.
    while (!link.sends.empty() && link.sends.front() < first_undone_ + call_.plan->rows_ahead() &&
           (transport_.sends_to(peer) < limits_.sends || link.num_sends == 0 ||
            link.sends.front() < link.newest_send)) {
      post_send(pop(link.sends));
      posted = true;
    }
  }
  return posted;
}

void Operation::post_send(int row) {
  const int64_t bytes = message_bytes(op(row).count);
  Message message{slot_, row, op(row).peer, bytes, nullptr, true};
  const void* data = range(row);
  if (converts()) {
    message.staging = transport_.staging().take(bytes);
    std::byte* packed = message.staging->memory.get();
    auto* own = reinterpret_cast<float*>(range(row));
    if (call_.residual != nullptr) {
      pack_keeping(own, packed, call_.residual + op(row).offset, op(row).count, call_.wire);
    } else {
      pack(own, packed, op(row).count, call_.wire);
    }
    data = packed;
  }
  Link& link = links_[static_cast<size_t>(op(row).link)];
  ++link.num_sends;
  link.newest_send = std::max(link.newest_send, row);
  transport_.send(message, data, transport_.tag(slot_, signature_, op(row).tag));
}

void Operation::post_receive(int row) {
  const int64_t bytes = message_bytes(op(row).count);
  Message message{slot_, row, op(row).peer, bytes, nullptr, false};
  void* data = range(row);
  if (converts() || op(row).kind == Kind::recv_reduce) {
    message.staging = transport_.staging().take(bytes);
    data = message.staging->memory.get();
  }
  Link& link = links_[static_cast<size_t>(op(row).link)];
  ++link.num_receives;
  link.newest_receive = std::max(link.newest_receive, row);
  transport_.receive(message, data, transport_.tag(slot_, signature_, op(row).tag));
}

std::string Operation::waits_for() const {
  std::string text =
      "operation " + std::to_string(call_.number) + (call_.name.empty() ? "" : " '" + call_.name + "'") +
      " (" + std::to_string(call_.count) + " " + dtype_name(call_.dtype) + ") is in phase " +
      std::to_string(phase_ + 1) + " of " + std::to_string(call_.plan->num_phases()) + " and waits for";
  if (barrier_row_ >= 0) {
    return text + " rank " + std::to_string(host_.world_rank(host_.barriers().missing(slot_))) +
           " of this host";
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    const std::string peer = " rank " + std::to_string(call_.plan->peers()[i]);
    if (links_[i].num_receives > 0) text += peer + " to send,";
    if (links_[i].num_sends > 0) text += peer + " to receive,";
  }
  if (text.back() == ',') text.pop_back();
  return text;
}

}  // namespace ddltrain
