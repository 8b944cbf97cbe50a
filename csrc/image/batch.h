// A pool of threads that turns batches of records into images.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sample.h"

namespace ddltrain::image {

// One batch: where its records lie, and where its images go.
struct BatchTask {
  const uint8_t* block;
  int64_t block_bytes;
  std::vector<int64_t> starts, sizes, records;  // of the block, and keys of the random numbers
  Sampling sampling;
  uint32_t seed, epoch;
  uint8_t* images;  // one behind the other
};

// What became of a batch: the first record that is damaged, if any.
struct BatchResult {
  int64_t bad_place = -1;
  std::string reason;
};

// A batch under way. The decoder's mutex guards what can change, but for the place that is next.
class Batch {
 public:
  explicit Batch(BatchTask task)
      : task_(std::move(task)), count_(static_cast<int64_t>(task_.starts.size())) {}

  // The place of an image that nobody has begun; count() or more where there is none.
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  int64_t count() const { return count_; }
  const BatchTask& task() const { return task_; }

  int64_t num_done = 0;
  BatchResult result;

 private:
  BatchTask task_;
  int64_t count_;
  std::atomic<int64_t> next_ = 0;
};

class BatchDecoder {
 public:
  explicit BatchDecoder(int num_threads);
  ~BatchDecoder();
  BatchDecoder(const BatchDecoder&) = delete;
  BatchDecoder& operator=(const BatchDecoder&) = delete;

  // Memory that the task points to must stay until the batch is done, or the decoder has ended.
  std::shared_ptr<Batch> submit(BatchTask task);

  bool is_done(const Batch& batch);

  // Waits for a batch. Throws std::runtime_error where the decoder ends before it is done.
  BatchResult wait(const Batch& batch);

  // Ends the threads after the images they are at; batches that are not finished stay so.
  void close();

 private:
  void work();
  std::shared_ptr<Batch> oldest_batch();
  void note(Batch& batch, int64_t place, const char* reason);
  void finish(const std::shared_ptr<Batch>& batch, int64_t num_done);

  std::mutex mutex_;
  std::condition_variable work_is_there_, batch_is_done_;
  std::deque<std::shared_ptr<Batch>> waiting_;  // those with images that no thread has begun
  std::atomic<bool> is_closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ddltrain::image
