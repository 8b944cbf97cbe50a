// When operations were under way, for a timeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddltrain {

// In nanoseconds of the steady clock, which is that of Python's perf_counter_ns.
struct Span {
  std::string name;
  int64_t start_ns, end_ns;
};

// Keeps none until it is told to.
class Spans {
 public:
  void keep(int64_t most) { most_ = static_cast<size_t>(most); }

  void add(const std::string& name, std::chrono::steady_clock::time_point start) {
    if (spans_.size() >= most_) return;
    spans_.push_back({name, nanoseconds(start), nanoseconds(std::chrono::steady_clock::now())});
  }

  std::vector<Span> take() { return std::exchange(spans_, {}); }

 private:
  static int64_t nanoseconds(std::chrono::steady_clock::time_point time) {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  }

  std::vector<Span> spans_;
  size_t most_ = 0;
};

}  // namespace ddltrain
