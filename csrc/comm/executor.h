// Runs plans: the only code that moves gradients.
//
//   submit ──► queue ──► slots (operations in flight) ──► messages under way, local work
//                              ▲ driven by progress(), under one lock
//              a thread that waits for an operation, or else the background thread
//
// A thread that waits drives all operations itself, so that nothing has to be handed over and small
// operations in a window are as quick as the memory between two cores. The background thread takes over while
// nobody waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backoff.h"
#include "host.h"
#include "operation.h"
#include "spans.h"
#include "transport.h"

namespace ddltrain {

struct ExecutorOptions {
  int64_t max_message_bytes;  // a plan with longer messages is refused
  double timeout_s;           // without progress in an operation
  bool uses_windows;
  int ranks_per_host;  // 0: all of a host; else makes several hosts of one
};

// Every rank makes the same calls in the same order, from one thread at a time. Errors are for good: an
// operation that fails takes the executor with it.
class Executor {
  using Lock = std::unique_lock<std::mutex>;

 public:
  // Collective over `parent`.
  Executor(MPI_Comm parent, ExecutorOptions options);
  // Never waits for other ranks: what is in flight is dropped.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int rank() const { return transport_.comm().rank(); }
  const Host& host() const { return host_; }
  // Whether operations go on while nobody waits; not so where MPI allows calls from one thread only.
  bool has_background() const { return thread_.joinable(); }

  // Collective over the host. The memory lives as long as the pointer, or an operation in it.
  std::shared_ptr<Window> allocate(int64_t bytes);
  // Whether plans that use windows can run on these bytes.
  bool in_window(const void* data, int64_t bytes) const { return window_of(data, bytes) != nullptr; }

  // Keeps this rank's part of a plan; returns its id.
  int64_t load_plan(std::span<const int64_t> rows, uint64_t key, int rows_ahead);

  // Starts an operation and returns its number; `data` and `residual` must last until it is done. Of several
  // that are in flight, those of higher priority, then the older ones, go first.
  int64_t submit(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire,
                 float* residual, int priority, std::string name);
  void wait(int64_t number);
  bool test(int64_t number);
  // submit and wait, without waking the background thread.
  void run(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire, float* residual,
           std::string name);

  // How long no operation has got on, in seconds, and what the first of them waits for; 0 and "" where none
  // is in flight. From any thread.
  std::pair<double, std::string> waiting();
  // The time so far with an operation under way on this rank, waits for others included.
  double busy_s();

  // From now on keeps the span of every operation that ends, up to so many.
  void keep_spans(int64_t most) {
    const Lock lock = enter();
    spans_.keep(most);
  }
  // The spans kept so far, which are kept no longer.
  std::vector<Span> take_spans() {
    const Lock lock = enter();
    return spans_.take();
  }

  // Ends all operations with an error, from any thread.
  void abort(const std::string& reason);

 private:
  // The background thread steps aside for callers: a busy one would else take the lock again and again.
  Lock enter();
  std::shared_ptr<Window> window_of(const void* data, int64_t bytes) const;
  int64_t enqueue(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire,
                  float* residual, int priority, std::string name);
  void drive_until_done(int64_t number, Lock& lock);
  bool is_done(int64_t number) const;
  bool busy() const { return !queue_.empty() || !active_.empty(); }
  bool failed() const { return !failure_.empty(); }
  void throw_failure() const;
  void fail(const std::string& reason);
  bool progress();
  void start_queued();
  double idle_s();
  void check_others();
  void run_background();

  const ExecutorOptions options_;
  Transport transport_;
  Host host_;
  std::deque<Plan> plans_;
  std::vector<std::weak_ptr<Window>> windows_;
  std::vector<Operation> slots_;    // of operation n: n modulo their number, the same on all ranks
  std::vector<int64_t> finished_;   // newest operation that each slot has done with, -1 for none
  std::vector<Operation*> active_;  // in the order of their turn
  std::vector<Submission> queue_;
  int64_t num_submitted_ = 0;
  std::string failure_;
  Backoff::Clock::time_point last_progress_;
  Backoff::Clock::time_point busy_since_;
  std::chrono::duration<double> busy_time_{0};
  Spans spans_;

  std::mutex mutex_;
  std::atomic<int> num_entering_{0};
  std::condition_variable wake_;
  int num_waiting_ = 0;  // threads that drive
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace ddltrain
