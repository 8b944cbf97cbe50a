#include "drive.h"

#include <cstdio>
#include <cstdlib>

#include "executor.h"

using namespace ddltrain;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// A ring over all ranks, two elements a segment and two segments a part.
std::vector<int64_t> ring(int64_t rank, int64_t size) {
  std::vector<int64_t> rows;
  int64_t tag = 0;
  const auto add = [&](int64_t kind, int64_t peer, int64_t part, int64_t segment) {
    const int64_t offset = ((part % size + size) % size * 2 + segment) * 2;
    for (const int64_t word : {kind, int64_t{0}, int64_t{0}, tag, (peer + size) % size, offset, int64_t{2}}) {
      rows.push_back(word);
    }
  };
  for (int64_t step = 0; step < 2 * (size - 1); ++step) {
    for (int64_t segment = 0; segment < 2; ++segment, ++tag) {
      add(0, rank + 1, rank - 1 - step, segment);
      add(step < size - 1 ? 2 : 1, rank - 1, rank - 2 - step, segment);
    }
  }
  return rows;
}

}  // namespace

void drive(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  {
    Executor executor(comm, {1 << 20, 30, true, 0});
    const int64_t count = 4 * size;
    const int64_t plan = executor.load_plan(ring(rank, size), 1, 4);
    const int64_t total = size * (size + 1) / 2;
    for (const Wire wire : {Wire::same, Wire::bfloat16}) {
      std::vector<std::vector<float>> data(40, std::vector<float>(static_cast<size_t>(count), 1.0f + rank));
      std::vector<std::vector<float>> residuals(data.size(), std::vector<float>(static_cast<size_t>(count)));
      std::vector<int64_t> numbers;
      for (auto& own : data) {
        float* residual = wire == Wire::same ? nullptr : residuals[numbers.size()].data();
        numbers.push_back(executor.submit(plan, own.data(), count, DType::float32, ReduceOp::sum, wire,
                                          residual, static_cast<int>(numbers.size()) % 3, "grads"));
        // So that the background thread is at work when the next one comes.
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      while (!executor.test(numbers.back())) std::this_thread::yield();
      require(executor.busy_s() > 0, "time has passed");
      for (size_t i = 0; i < data.size(); ++i) {
        executor.wait(numbers[i]);
        for (const float value : data[i]) require(value == static_cast<float>(total), "the sum of all ranks");
      }
    }
    const auto window = executor.allocate(count * 8);
    const int64_t offset = 4 * rank;
    const std::vector<int64_t> rows{3, 0, 0, 0, -1, 0, 0, 6, 1, 0, 0, -1, offset, 4, 3, 2, 0, 0, -1, 0, 0};
    const int64_t local = executor.load_plan(rows, 2, 1);
    auto* values = reinterpret_cast<int64_t*>(window->own());
    for (int round = 0; round < 50; ++round) {
      for (int64_t i = 0; i < count; ++i) values[i] = rank + 1;
      executor.run(local, values, count, DType::int64, ReduceOp::sum, Wire::same, nullptr, "");
      for (int64_t i = 0; i < count; ++i) require(values[i] == total, "the sum of all windows");
    }
  }
  {
    Executor executor(comm, {1 << 20, 0.2, true, 0});
    std::vector<float> data(static_cast<size_t>(4 * size));
    const int64_t plan = executor.load_plan(ring(rank, size), 1, 4);
    bool failed = rank == 0;
    try {
      if (rank != 0) {
        executor.run(plan, data.data(), 4 * size, DType::float32, ReduceOp::sum, Wire::same, nullptr, "late");
      }
    } catch (const MpiError&) {
      failed = true;
    }
    require(failed, "a missing rank is an error");
    MPI_Barrier(comm);
  }
}
