// Kernels, barriers and plans without MPI: threads stand in for ranks.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>

#include "barrier.h"
#include "half.h"
#include "plan.h"
#include "reduce.h"

using namespace ddltrain;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

constexpr DType dtypes[] = {DType::float32, DType::float64, DType::int32,
                            DType::int64,   DType::float16, DType::bfloat16};
constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max};
constexpr int64_t counts[] = {0, 1, 7, 63, 1023, 1024, 1025, 5000};

std::vector<std::byte> random_bytes(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

template <typename T, typename IsNan>
void replace_nans(std::vector<std::byte>& bytes, T nan, IsNan is_nan) {
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, &bytes[i], sizeof(T));
    if (is_nan(value)) std::memcpy(&bytes[i], &nan, sizeof(T));
  }
}

// Which of two NaNs a sum keeps is the compiler's choice.
void unify_nans(std::vector<std::byte>& bytes, DType dtype) {
  const auto is_nan = [](auto value) { return std::isnan(value); };
  const auto is_wide_nan = [](auto value) { return std::isnan(widen(value)); };
  if (dtype == DType::float32) replace_nans(bytes, std::numeric_limits<float>::quiet_NaN(), is_nan);
  if (dtype == DType::float64) replace_nans(bytes, std::numeric_limits<double>::quiet_NaN(), is_nan);
  if (dtype == DType::float16) replace_nans(bytes, Float16{0x7e00}, is_wide_nan);
  if (dtype == DType::bfloat16) replace_nans(bytes, BFloat16{0x7fc0}, is_wide_nan);
}

// Everything that one set of kernels makes of some bytes, infinities and NaNs among them.
std::vector<std::byte> results(Isa isa) {
  set_isa(isa);
  std::vector<std::byte> all;
  const auto keep = [&all](std::vector<std::byte> bytes, DType dtype) {
    unify_nans(bytes, dtype);
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  for (const int64_t count : counts) {
    for (const DType dtype : dtypes) {
      const int64_t size = count * dtype_bytes(dtype);
      const bool is_real = dtype != DType::int32 && dtype != DType::int64;
      for (const ReduceOp op : ops) {
        std::vector<std::vector<std::byte>> ranks;
        for (unsigned rank = 0; rank < 5; ++rank) ranks.push_back(random_bytes(size, rank));
        reduce_into(ranks[0].data(), ranks[1].data(), count, dtype, op);
        keep(ranks[0], dtype);
        std::vector<std::byte*> slabs;
        for (auto& rank : ranks) slabs.push_back(rank.data());
        for (const size_t num : {1, 2, 5}) {
          const std::span<std::byte* const> some(slabs.data(), num);
          reduce_ranks(some, some.subspan(0, num), count, dtype, op, is_real ? 0.2 : 1);
          keep(ranks[0], dtype);
          require(ranks[0] == ranks[num - 1], "all targets get the same bits");
        }
      }
      if (is_real) {
        auto data = random_bytes(size, 9);
        scale(data.data(), count, dtype, 1.0 / 3);
        keep(data, dtype);
      }
    }
    for (const Wire wire : {Wire::float16, Wire::bfloat16}) {
      auto own = random_bytes(count * 4, 3), rounded = own, back = own;
      std::vector<std::byte> packed(static_cast<size_t>(count * 2));
      pack(reinterpret_cast<float*>(own.data()), packed.data(), count, wire);
      unpack(reinterpret_cast<float*>(back.data()), packed.data(), count, wire);
      round_to(reinterpret_cast<float*>(rounded.data()), count, wire);
      require(own == back && own == rounded, "sender and receiver hold the same bits");
      reduce_wire_into(reinterpret_cast<float*>(own.data()), packed.data(), count, wire, ReduceOp::max);
      keep(own, DType::float32);
    }
  }
  return all;
}

void check_kernels() {
  const auto portable = results(Isa::portable);
  require(portable == results(Isa::avx2), "AVX2 gives the bits of the portable kernels");
  require(portable == results(Isa::avx512), "AVX-512 gives the bits of the portable kernels");
}

void check_halves() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const BFloat16 brain{static_cast<uint16_t>(bits)};
    const int exponent = (bits >> 10) & 31;
    const double fraction = (bits & 1023) / 1024.0, sign = bits & 0x8000 ? -1 : 1;
    if (exponent < 31) {
      const double value =
          exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
      require(widen(half) == sign * value, "float16 means what the standard says");
    }
    if (!std::isnan(widen(half))) require(narrow(widen(half), half).bits == bits, "float16 survives");
    if (!std::isnan(widen(brain))) require(narrow(widen(brain), brain).bits == bits, "bfloat16 survives");
  }
  require(narrow(65519.0f, Float16{}).bits == 0x7bff, "rounds down to the largest");
  require(narrow(65520.0f, Float16{}).bits == 0x7c00, "rounds up to infinity");
  require(narrow(0x1p-25f, Float16{}).bits == 0, "a tie goes to even");
  require(narrow(0x1.8p-24f, Float16{}).bits == 2, "a tie goes to even");
  require(std::isnan(widen(narrow(std::numeric_limits<float>::quiet_NaN(), Float16{}))), "NaN stays NaN");
  require(narrow(1.00390625f, BFloat16{}).bits == 0x3f80, "a tie goes to even");
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float values[] = {1e9f, -65520.0f, 3.0f, infinity, -infinity, std::numeric_limits<float>::max()};
  uint16_t packed[6];
  pack(values, packed, 6, Wire::float16);
  require(values[0] == 65504 && values[1] == -65504 && values[2] == 3 && values[5] == 65504,
          "finite values stay finite in float16");
  require(values[3] == infinity && values[4] == -infinity, "infinity stays");
  values[5] = std::numeric_limits<float>::max();
  round_to(values, 6, Wire::bfloat16);
  require(values[5] == 0x1.fep127f && values[3] == infinity, "finite values stay finite in bfloat16");
}

// Ranks write to each other's memory between barriers, as LOCAL_REDUCE_SPREAD does.
void check_barriers() {
  constexpr int num_ranks = 4, num_slots = 3, rounds = 300;
  std::vector<std::vector<Arrival>> memory;
  for (int rank = 0; rank < num_ranks; ++rank) memory.emplace_back(num_slots);
  std::vector<int64_t> data(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<Arrival*> lines;
      for (auto& line : memory) lines.push_back(line.data());
      SlotBarriers barriers(lines, num_slots, rank);
      const auto wait = [&](int slot, uint64_t signature) {
        barriers.arrive(slot, signature);
        while (!barriers.test(slot)) std::this_thread::yield();
        return barriers.odd_one(slot);
      };
      for (int round = 0; round < rounds; ++round) {
        const int slot = round % num_slots;
        data[static_cast<size_t>(rank)] = round + rank;
        require(wait(slot, static_cast<uint64_t>(round)) < 0, "all have the same signature");
        for (int other = 0; other < num_ranks; ++other) {
          require(data[static_cast<size_t>(other)] == round + other, "all have arrived");
        }
        require(wait(slot, static_cast<uint64_t>(round)) < 0, "all have the same signature");
      }
      const int odd = wait(0, rank == 2 ? 1 : 0);
      require(rank == 2 ? odd >= 0 : odd == 2, "who differs is known");
      wait(0, 0);
      if (rank == 1) barriers.give_up();
      wait(0, 0);
      require(barriers.find_given_up() == 1, "who has given up is known");
    });
  }
  for (auto& thread : threads) thread.join();
}

bool refuses(std::vector<int64_t> rows, int rows_ahead = 32) {
  try {
    Plan(rows, 0, rows_ahead, 0, 2);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void check_plans() {
  const std::vector<int64_t> rows{
      3, 0, 0, 0, -1, 0, 0,  // barrier
      2, 1, 0, 0, 1,  0, 5,  // 1: receive and reduce
      0, 1, 0, 0, 1,  0, 5,  // 2: send, after 1
      0, 1, 0, 1, 1,  0, 5,  // 3: send, after 1
      1, 1, 0, 1, 1,  0, 5,  // 4: receive, after 2 and 3
      0, 1, 0, 2, 1,  5, 5,  // 5: another segment
  };
  const Plan plan(rows, 1, 32, 0, 2);
  require(plan.num_phases() == 2 && plan.end() == 10 && plan.uses_window(), "the plan's facts");
  require(plan.num_awaited() == std::vector<int>({0, 1, 1, 1, 2, 0}), "what waits for what");
  require(plan.dependents(1).size() == 2 && plan.dependents(2)[0] == 4, "who waits for it");
  require(refuses({0, 0, 0, 0, 0, 0, 1}), "a message to itself");
  require(refuses({0, 0, 0, 0, 2, 0, 1}), "a peer that is not there");
  require(refuses({0, 0, 0, 1 << 20, 1, 0, 1}), "a tag too large");
  require(refuses({0, 0, 0, 0, 1, 0, 0}), "nothing to send");
  require(refuses({7, 0, 0, 0, 1, 0, 1}), "an unknown kind");
  require(refuses({4, 1, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 1}), "phases that go back");
  require(refuses({0, 0, 0}), "rows cut short");
  require(refuses({0, 0, 0, 0, 1, 0, 1}, 0), "no row that may be sent");
  require(!refuses({0, 0, 0, 0, 1, 0, 1}, 1), "the first row may always be sent");
}

}  // namespace

int main() {
  check_kernels();
  check_halves();
  check_barriers();
  check_plans();
}
