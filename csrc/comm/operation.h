// One collective operation in flight: where it is in its plan, and what it can do next.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host.h"
#include "plan.h"
#include "transport.h"
#include "types.h"

namespace ddltrain {

struct Submission {
  const Plan* plan;
  std::byte* data;
  int64_t count;
  DType dtype;
  ReduceOp op;
  Wire wire;
  float* residual;  // of the same size as `data`: what rounding to 16 bits takes away; or null
  int priority;
  std::string name;
  int64_t number;                               // counts the operations of an executor; the same on all ranks
  std::shared_ptr<Window> window;               // that holds `data`, for plans that use one
  std::chrono::steady_clock::time_point since;  // it is under way
};

// How many messages of a plan may be under way to, and from, one peer.
struct MessageLimits {
  int receives;
  int sends;
};

// Nothing here blocks: advance() does what can be done now.
class Operation {
 public:
  Operation(Transport& transport, Host& host, int slot, MessageLimits limits)
      : transport_(transport), host_(host), slot_(slot), limits_(limits) {}

  void start(Submission submission);
  // Does a bounded piece of local work and posts messages; returns whether anything was done.
  bool advance();
  // To be called when a message of this operation has come or gone.
  void finish(const Message& message);

  bool active() const { return active_; }
  int64_t number() const { return call_.number; }
  int priority() const { return call_.priority; }
  const Submission& call() const { return call_; }
  // Whether it has got on since the last call.
  bool take_moved() { return std::exchange(moved_, false); }
  std::string waits_for() const;

 private:
  // What goes on between this rank and one peer.
  struct Link {
    std::vector<int> receives;  // rows that are ready to be posted, heaps with the lowest first
    std::vector<int> sends;
    int num_receives = 0;  // posted
    int num_sends = 0;
    int newest_receive = -1;  // highest row posted
    int newest_send = -1;
  };

  int64_t bytes_of(int64_t count) const { return count * dtype_bytes(call_.dtype); }
  int64_t message_bytes(int64_t count) const;
  const PlanOp& op(int row) const { return call_.plan->ops()[static_cast<size_t>(row)]; }
  std::byte* range(int row) const { return call_.data + bytes_of(op(row).offset); }
  bool converts() const { return call_.wire != Wire::same; }

  void begin_phase(int phase);
  void make_ready(int row);
  void complete(int row);
  void reduce_received(int row);
  bool step(int64_t& budget_bytes);
  bool scale_some(int64_t& budget_bytes);
  bool round_some(int64_t& budget_bytes);
  void end();
  bool test_barrier();
  void work_locally(int64_t& budget_bytes);
  void run_local(const PlanOp& op, int64_t offset, int64_t count);
  bool post();
  void post_send(int row);
  void post_receive(int row);

  Transport& transport_;
  Host& host_;
  const int slot_;
  const MessageLimits limits_;

  Submission call_{};
  bool active_ = false;
  bool moved_ = false;
  double factor_ = 1;
  uint64_t signature_ = 0;
  uint64_t local_signature_ = 0;
  int64_t unscaled_ = 0;   // elements from the end that are yet to be scaled, before all else
  int64_t unrounded_ = 0;  // and those yet to be rounded as on the wire, after all else
  int phase_ = 0;
  int remaining_ = 0;  // operations of the phase
  int barrier_row_ = -1;
  int64_t local_done_ = 0;  // elements of the first of local_rows_
  std::vector<int> awaited_;
  std::vector<bool> done_;
  int first_undone_ = 0;
  std::vector<Staging*> received_;
  std::vector<int> local_rows_;  // ready, a heap with the lowest first
  std::vector<Link> links_;
  std::vector<std::byte*> slabs_;
};

}  // namespace ddltrain
