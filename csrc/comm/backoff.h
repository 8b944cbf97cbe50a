// How a thread waits for something that it has to poll for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace ddltrain {

// First it spins, then it lets other threads of the host run, then it sleeps longer and longer.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  struct Policy {
    std::chrono::microseconds spin;   // then yield
    std::chrono::microseconds yield;  // then sleep
  };

  // A thread that has nothing else to do may spin, unless the others it waits for need its core. It does so
  // for a moment only: yielding costs little where the core is free, and spinning much where it is not.
  static constexpr Policy waiting{std::chrono::microseconds(1), std::chrono::microseconds(2000)};
  static constexpr Policy crowded{std::chrono::microseconds(0), std::chrono::microseconds(2000)};
  explicit Backoff(Policy policy) : policy_(policy) {}

  void reset() { polls_ = 0; }

  // To be called after a fruitless poll. Returns whether it gave up the core.
  bool pause() {
    if (++polls_ <= num_free_polls) {
      relax();
      return false;
    }
    const auto now = Clock::now();
    if (polls_ == num_free_polls + 1) {
      since_ = now;
      sleep_ = shortest_sleep;
    }
    if (now - since_ < policy_.spin) {
      relax();
      return false;
    }
    if (now - since_ < policy_.spin + policy_.yield) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 3 / 2, longest_sleep);
    }
    return true;
  }

 private:
  static constexpr int num_free_polls = 8;  // before the first look at the clock
  static constexpr std::chrono::nanoseconds shortest_sleep{20'000};
  static constexpr std::chrono::nanoseconds longest_sleep{100'000};

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  Policy policy_;
  int polls_ = 0;
  Clock::time_point since_;
  std::chrono::nanoseconds sleep_ = shortest_sleep;
};

// How a thread polls beside one that computes, whose core this may be: it naps, so long that a few messages
// come or go meanwhile. Shorter naps would cost more than the messages do (a timer's interrupt alone can take
// 30 us on a virtual machine); longer ones would let links run dry.
class Naps {
 public:
  static constexpr std::chrono::nanoseconds longest{1'000'000};

  // To be called after a fruitless poll, with the number of messages that came or went since the last nap.
  void take(int64_t num_messages, std::chrono::nanoseconds limit = longest) {
    if (num_messages > most_messages) nap_ /= 2;
    if (num_messages < fewest_messages) nap_ = nap_ * 5 / 4 + step;
    nap_ = std::min({nap_, limit, longest});
    if (nap_ < shortest) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap_);
    }
  }

 private:
  static constexpr int64_t fewest_messages = 4, most_messages = 8;  // of 16 each way, see executor.cpp
  static constexpr std::chrono::nanoseconds step{1'000}, shortest{10'000};

  std::chrono::nanoseconds nap_{20'000};
};

}  // namespace ddltrain
