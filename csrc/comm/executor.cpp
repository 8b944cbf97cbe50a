#include "executor.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace ddltrain {

namespace {

// Enough to keep a link busy; more would only lengthen the queues that a late, urgent operation has to pass.
constexpr MessageLimits message_limits{16, 16};

constexpr std::chrono::milliseconds shortest_long_transfer{1};
constexpr int64_t naps_in_wait = 128;  // so many at least: then a nap that ends too late costs little of it

using seconds = std::chrono::duration<double>;

bool may_call_from_any_thread() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level));
  return level == MPI_THREAD_MULTIPLE;
}

}  // namespace

Executor::Executor(MPI_Comm parent, ExecutorOptions options)
    : options_(options),
      transport_(parent),
      host_(transport_.comm(), transport_.num_slots(), options.uses_windows, options.ranks_per_host),
      finished_(static_cast<size_t>(transport_.num_slots()), -1) {
  for (int slot = 0; slot < transport_.num_slots(); ++slot) {
    slots_.emplace_back(transport_, host_, slot, message_limits);
  }
  if (may_call_from_any_thread()) thread_ = std::thread(&Executor::run_background, this);
}

Executor::~Executor() {
  {
    const Lock lock = enter();
    stops_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !transport_.idle()) transport_.abandon();
}

Executor::Lock Executor::enter() {
  ++num_entering_;
  Lock lock(mutex_);
  --num_entering_;
  return lock;
}

std::shared_ptr<Window> Executor::allocate(int64_t bytes) {
  if (bytes <= 0) throw std::invalid_argument("a window has at least one byte");
  auto window = host_.allocate(bytes);
  const Lock lock = enter();
  std::erase_if(windows_, [](const auto& other) { return other.expired(); });
  windows_.push_back(window);
  return window;
}

std::shared_ptr<Window> Executor::window_of(const void* data, int64_t bytes) const {
  for (const auto& candidate : windows_) {
    if (auto window = candidate.lock(); window && window->holds(data, bytes)) return window;
  }
  return nullptr;
}

int64_t Executor::load_plan(std::span<const int64_t> rows, uint64_t key, int rows_ahead) {
  Plan plan(rows, key, rows_ahead, transport_.comm().rank(), transport_.comm().size());
  const Lock lock = enter();
  plans_.push_back(std::move(plan));
  return static_cast<int64_t>(plans_.size()) - 1;
}

int64_t Executor::submit(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire,
                         float* residual, int priority, std::string name) {
  int64_t number = 0;
  {
    const Lock lock = enter();
    number = enqueue(plan, data, count, dtype, op, wire, residual, priority, std::move(name));
  }
  wake_.notify_one();
  return number;
}

void Executor::run(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire,
                   float* residual, std::string name) {
  Lock lock = enter();
  drive_until_done(enqueue(plan, data, count, dtype, op, wire, residual, 0, std::move(name)), lock);
}

int64_t Executor::enqueue(int64_t plan, void* data, int64_t count, DType dtype, ReduceOp op, Wire wire,
                          float* residual, int priority, std::string name) {
  throw_failure();
  const Plan& own = plans_.at(static_cast<size_t>(plan));
  if (own.end() > count) throw std::invalid_argument("the plan is for more elements than there are");
  if (wire != Wire::same && dtype != DType::float32) {
    throw std::invalid_argument(std::string("only float32 can travel in 16 bits, not ") + dtype_name(dtype));
  }
  if (residual != nullptr && (wire == Wire::same || op != ReduceOp::sum)) {
    throw std::invalid_argument("only sums that travel in 16 bits leave a residual");
  }
  if (op == ReduceOp::avg && (dtype == DType::int32 || dtype == DType::int64)) {
    throw std::invalid_argument(std::string(dtype_name(dtype)) + " cannot be averaged; sum it and divide");
  }
  const DType sent = wire == Wire::same ? dtype : wire_dtype(wire);
  if (own.max_message() * dtype_bytes(sent) > options_.max_message_bytes) {
    throw std::invalid_argument("the plan's messages are longer than max_message_bytes");
  }
  std::shared_ptr<Window> window;
  if (own.uses_window()) {
    window = window_of(data, count * dtype_bytes(dtype));
    if (!window || !host_.has_windows())
      throw std::invalid_argument("the plan needs data in a shared window");
  }
  const auto now = Backoff::Clock::now();
  if (!busy()) busy_since_ = now;
  queue_.push_back({&own, static_cast<std::byte*>(data), count, dtype, op, wire, residual, priority,
                    std::move(name), num_submitted_, std::move(window), now});
  return num_submitted_++;
}

void Executor::wait(int64_t number) {
  Lock lock = enter();
  drive_until_done(number, lock);
}

bool Executor::test(int64_t number) {
  const Lock lock = enter();
  throw_failure();
  if (!is_done(number) && !thread_.joinable()) progress();
  throw_failure();
  return is_done(number);
}

double Executor::busy_s() {
  const Lock lock = enter();
  return busy_time_.count() + (busy() ? seconds(Backoff::Clock::now() - busy_since_).count() : 0);
}

void Executor::abort(const std::string& reason) {
  const Lock lock = enter();
  if (!failed()) fail(reason);
}

bool Executor::is_done(int64_t number) const {
  return finished_[static_cast<size_t>(number) % finished_.size()] >= number;
}

void Executor::drive_until_done(int64_t number, Lock& lock) {
  Backoff backoff(host_.crowded() ? Backoff::crowded : Backoff::waiting);
  Naps naps;
  int64_t num_seen = transport_.num_finished();
  const auto start = Backoff::Clock::now();
  ++num_waiting_;
  while (!is_done(number) && !failed()) {
    if (progress()) {
      backoff.reset();
      continue;
    }
    // Of a long transfer the end does not hang on a quick look, and what it needs is the core: for the
    // network.
    const auto waited = Backoff::Clock::now() - start;
    const bool may_nap = !transport_.idle() && waited > shortest_long_transfer;
    const int64_t num_messages = transport_.num_finished() - num_seen;
    lock.unlock();
    bool gave_up_core = may_nap;
    if (may_nap) {
      naps.take(num_messages, waited / naps_in_wait);
      num_seen += num_messages;
    } else {
      gave_up_core = backoff.pause();
    }
    lock.lock();
    if (gave_up_core) check_others();
  }
  if (--num_waiting_ == 0 && busy()) wake_.notify_one();
  throw_failure();
}

void Executor::throw_failure() const {
  if (failed()) throw MpiError(failure_);
}

void Executor::fail(const std::string& reason) {
  if (busy() && host_.has_windows()) host_.barriers().give_up();
  failure_ = "[rank " + std::to_string(transport_.comm().rank()) + "] " + reason;
  active_.clear();
  queue_.clear();
  transport_.abandon();
}

// One round over everything that is in flight; returns whether anything happened. Needs the lock.
bool Executor::progress() {
  bool progressed = false;
  const bool was_busy = busy();
  try {
    if (!queue_.empty()) start_queued();
    if (!transport_.idle()) {
      progressed = transport_.poll(
          [this](const Message& message) { slots_[static_cast<size_t>(message.slot)].finish(message); });
    }
    for (Operation* operation : active_) progressed |= operation->advance();
    std::erase_if(active_, [this](const Operation* operation) {
      if (operation->active()) return false;
      finished_[static_cast<size_t>(operation->number()) % finished_.size()] = operation->number();
      spans_.add(operation->call().name, operation->call().since);
      return true;
    });
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (was_busy && !busy()) busy_time_ += Backoff::Clock::now() - busy_since_;
  return progressed;
}

void Executor::start_queued() {
  const auto num_slots = static_cast<int64_t>(slots_.size());
  std::erase_if(queue_, [&](Submission& submission) {
    const auto slot = static_cast<size_t>(submission.number % num_slots);
    const int64_t previous = submission.number - num_slots;
    if (previous >= 0 && finished_[slot] < previous) return false;
    Operation& operation = slots_[slot];
    operation.start(std::move(submission));
    active_.push_back(&operation);
    return true;
  });
  std::sort(active_.begin(), active_.end(), [](const Operation* a, const Operation* b) {
    return std::pair(-a->priority(), a->number()) < std::pair(-b->priority(), b->number());
  });
  last_progress_ = Backoff::Clock::now();
}

// Looks, now and then while nothing happens, for ranks that do not come or have given up.
void Executor::check_others() {
  if (failed() || active_.empty()) return;
  if (const int local = host_.has_windows() ? host_.barriers().find_given_up() : -1; local >= 0) {
    return fail("rank " + std::to_string(host_.world_rank(local)) + " has given up; " +
                active_.front()->waits_for());
  }
  const double idle = idle_s();
  if (idle <= options_.timeout_s) return;
  fail("no progress for " + std::to_string(static_cast<int64_t>(idle)) +
       " s: " + active_.front()->waits_for());
}

// Seconds since any operation in flight got on. Needs the lock.
double Executor::idle_s() {
  const auto now = Backoff::Clock::now();
  bool moved = false;
  for (Operation* operation : active_) moved |= operation->take_moved();
  if (moved) last_progress_ = now;
  return std::chrono::duration<double>(now - last_progress_).count();
}

std::pair<double, std::string> Executor::waiting() {
  const Lock lock = enter();
  if (failed() || active_.empty()) return {0.0, ""};
  const double idle = idle_s();
  return {idle, active_.front()->waits_for()};
}

void Executor::run_background() {
#if defined(__linux__)
  prctl(PR_SET_TIMERSLACK, 1000);  // short sleeps; a refusal only makes them longer
#endif
  const auto is_wanted = [this] { return busy() && num_waiting_ == 0 && !failed(); };
  Naps naps;
  int64_t num_seen = 0;
  Lock lock(mutex_);
  while (!stops_) {
    if (!is_wanted()) {
      wake_.wait(lock, [&] { return stops_ || is_wanted(); });
      naps = {};
      continue;
    }
    const bool progressed = progress();
    const int64_t num_messages = transport_.num_finished() - num_seen;
    lock.unlock();
    if (!progressed) {
      naps.take(num_messages);
      num_seen += num_messages;
    }
    while (num_entering_ > 0) std::this_thread::yield();
    lock.lock();
    if (!progressed) check_others();
  }
}

}  // namespace ddltrain
