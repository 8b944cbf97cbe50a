#include "batch.h"

#include <stdexcept>

namespace ddltrain::image {

namespace {

std::span<const uint8_t> record_at(const BatchTask& task, size_t place) {
  const int64_t start = task.starts[place], size = task.sizes[place];
  if (start < 0 || size < 0 || start > task.block_bytes || size > task.block_bytes - start) {
    throw CorruptRecord("it lies outside the data");
  }
  return {task.block + start, static_cast<size_t>(size)};
}

void make_image(Sampler& sampler, const BatchTask& task, size_t place) {
  const RandomKey key{task.seed, task.epoch, static_cast<uint64_t>(task.records[place])};
  sampler.sample(record_at(task, place), task.sampling, key,
                 task.images + place * task.sampling.output.image_bytes());
}

}  // namespace

BatchDecoder::BatchDecoder(int num_threads) {
  if (num_threads < 1) throw std::invalid_argument("a decoder needs a thread or more");
  threads_.reserve(static_cast<size_t>(num_threads));
  try {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {  // the system gives no more threads
    close();
    throw;
  }
}

BatchDecoder::~BatchDecoder() { close(); }

void BatchDecoder::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  work_is_there_.notify_all();
  batch_is_done_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::shared_ptr<Batch> BatchDecoder::submit(BatchTask task) {
  auto batch = std::make_shared<Batch>(std::move(task));
  if (batch->count() == 0) return batch;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) throw std::runtime_error("the decoder has ended");
    waiting_.push_back(batch);
  }
  work_is_there_.notify_all();
  return batch;
}

bool BatchDecoder::is_done(const Batch& batch) {
  const std::lock_guard lock(mutex_);
  return batch.num_done == batch.count();
}

BatchResult BatchDecoder::wait(const Batch& batch) {
  std::unique_lock lock(mutex_);
  batch_is_done_.wait(lock, [&] { return is_closed_ || batch.num_done == batch.count(); });
  if (batch.num_done < batch.count()) throw std::runtime_error("the decoder has ended");
  return batch.result;
}

void BatchDecoder::work() {
  Sampler sampler;
  while (const std::shared_ptr<Batch> batch = oldest_batch()) {
    int64_t num_done = 0;
    for (int64_t place = batch->take(); place < batch->count() && !is_closed_; place = batch->take()) {
      try {
        make_image(sampler, batch->task(), static_cast<size_t>(place));
      } catch (const std::exception& error) {
        note(*batch, place, error.what());
      }
      ++num_done;
    }
    finish(batch, num_done);
  }
}

// The oldest batch with images to do; nothing once the decoder ends.
std::shared_ptr<Batch> BatchDecoder::oldest_batch() {
  std::unique_lock lock(mutex_);
  work_is_there_.wait(lock, [&] { return is_closed_ || !waiting_.empty(); });
  return is_closed_ ? nullptr : waiting_.front();
}

// Of several damaged records the first one counts, so that messages do not depend on threads.
void BatchDecoder::note(Batch& batch, int64_t place, const char* reason) {
  const std::lock_guard lock(mutex_);
  if (batch.result.bad_place < 0 || place < batch.result.bad_place) batch.result = {place, reason};
}

// A thread has found nothing more to begin in `batch`.
void BatchDecoder::finish(const std::shared_ptr<Batch>& batch, int64_t num_done) {
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_.empty() && waiting_.front() == batch) waiting_.pop_front();
    batch->num_done += num_done;
    if (batch->num_done < batch->count()) return;
  }
  batch_is_done_.notify_all();
}

}  // namespace ddltrain::image
