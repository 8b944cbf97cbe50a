// A mutation fuzzer for records and for JPEG files:
//
//   fuzz CORPUS EXECUTIONS [SEED]
//
// CORPUS is a folder of small JPEG files. Each execution changes a file, or the record of one, in a few
// places and puts it through everything that reads it. To be built with sanitizers. Whatever can be read must
// also be consistent; where it is not, the fuzzer writes the input to ./finding and aborts, as it does when a
// sanitizer or a time limit strikes.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "isa.h"
#include "pack.h"
#include "window.h"

using namespace ddltrain::image;

// What is freed is guarded for some executions, which fits a cache; a report tells the call that allocated,
// and all calls that led there with ASAN_OPTIONS=malloc_context_size=30 and the same seed.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=1:malloc_context_size=1"; }

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr unsigned time_limit_s = 20;  // of `executions_per_alarm` executions
constexpr int64_t executions_per_alarm = 64;
constexpr int max_changes = 4;

Bytes current;

void save_finding() {
  std::ofstream("finding", std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
}

void require(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

size_t below(Random& random, size_t count) { return static_cast<size_t>(random() % count); }

// Bytes that tend to matter: markers, limits, signs.
uint8_t telling_byte(Random& random) {
  constexpr uint8_t bytes[] = {0x00, 0x01, 0x10, 0x3f, 0x7f, 0x80, 0xc0, 0xc4,
                               0xd0, 0xd9, 0xda, 0xdb, 0xdd, 0xfe, 0xff};
  return bytes[below(random, std::size(bytes))];
}

void change(Bytes& data, const Bytes& other, Random& random) {
  if (data.empty()) return;
  // Headers are short and matter most.
  const size_t reach = random() % 2 ? data.size() : std::min<size_t>(data.size(), 700);
  const size_t at = below(random, reach);
  const size_t count = std::min(data.size() - at, 1 + below(random, 16));
  const auto place = data.begin() + static_cast<ptrdiff_t>(at);
  switch (random() % 8) {
    case 0:
    case 1:
      data[at] ^= static_cast<uint8_t>(1u << (random() % 8));
      break;
    case 2:
      data[at] = static_cast<uint8_t>(random());
      break;
    case 3:
      data[at] = telling_byte(random);
      break;
    case 4:
      data.erase(place, place + static_cast<ptrdiff_t>(count));
      break;
    case 5:
      data.insert(place, count, telling_byte(random));
      break;
    case 6: {  // bytes of another file
      const size_t from = below(random, other.size());
      const size_t taken = std::min(count, other.size() - from);
      std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), taken, place);
      break;
    }
    default:
      if (random() % 8 == 0) data.resize(at);
  }
}

Bytes mutated(const std::vector<Bytes>& corpus, Random& random) {
  Bytes data = corpus[below(random, corpus.size())];
  const size_t num_changes = 1 + below(random, max_changes);
  for (size_t i = 0; i < num_changes; ++i) change(data, corpus[below(random, corpus.size())], random);
  return data;
}

// Exactly as many bytes as there are, so that a sanitizer sees any read behind them.
class Exact {
 public:
  explicit Exact(const Bytes& data) : data_(std::make_unique<uint8_t[]>(data.size())), size_(data.size()) {
    std::copy(data.begin(), data.end(), data_.get());
  }
  std::span<const uint8_t> span() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_;
};

// All samples that a window gets, read to the last.
Bytes decoded(WindowDecoder& decoder, std::span<const uint8_t> record, const Rect& window) {
  Bytes samples;
  const Planes planes = decoder.decode(record, window);
  for (int i = 0; i < planes.count; ++i) {
    const Plane& plane = planes.plane[static_cast<size_t>(i)];
    for (int y = 0; y < plane.height; ++y) {
      const uint8_t* row = plane.pixels + y * plane.stride;
      samples.insert(samples.end(), row, row + plane.width);
    }
  }
  return samples;
}

// Whole or in part, with vectors or without: the same. All samples if the record can be decoded whole.
std::optional<Bytes> try_decode(WindowDecoder& decoder, std::span<const uint8_t> record, Random& random) {
  try {
    const Header header = read_header(record);
    const int left = static_cast<int>(below(random, static_cast<size_t>(header.width)));
    const int top = static_cast<int>(below(random, static_cast<size_t>(header.height)));
    decoded(decoder, record,
            {left, top, 1 + static_cast<int>(random() % 40), 1 + static_cast<int>(random() % 40)});
  } catch (const CorruptRecord&) {
  }
  try {
    const Header header = read_header(record);
    const Rect whole = {0, 0, header.width, header.height};
    Bytes samples = decoded(decoder, record, whole);
    if (random() % 4 == 0) {
      set_isa(Isa::portable);
      require(decoded(decoder, record, whole) == samples, "portable code gives other samples");
      set_isa(Isa::avx2);
    }
    return samples;
  } catch (const CorruptRecord&) {
    return {};
  }
}

bool fuzz_record(WindowDecoder& decoder, const Bytes& data, Random& random) {
  const Exact record(data);
  const std::optional<Bytes> samples = try_decode(decoder, record.span(), random);
  try {
    const Bytes file = unpack(record.span());
    require(samples.has_value(), "unpacked, but not decoded");
    const Bytes again = pack_jpeg(file);
    const Header header = read_header(record.span());
    require(decoded(decoder, again, {0, 0, header.width, header.height}) == *samples,
            "packed again, it differs");
  } catch (const CorruptRecord&) {
  }
  return samples.has_value();
}

bool fuzz_file(WindowDecoder& decoder, const Bytes& data, Random& random) {
  const Exact file(data);
  Bytes record;
  try {
    record = pack_jpeg(file.span());
  } catch (const Unsupported&) {
    return false;
  } catch (const CorruptRecord&) {
    return false;
  }
  require(try_decode(decoder, Exact(record).span(), random).has_value(), "packed, but not decoded");
  require(pack_jpeg(unpack(record)) == record, "unpacked and packed again, it differs");
  return true;
}

std::vector<Bytes> read_folder(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<Bytes> files;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  require(!files.empty(), "no .jpg files in the corpus");
  return files;
}

}  // namespace

int main(int num_words, char** words) {
  require(num_words >= 3, "usage: fuzz CORPUS EXECUTIONS [SEED]");
  const std::vector<Bytes> files = read_folder(words[1]);
  const int64_t executions = std::atoll(words[2]);
  Random random(num_words > 3 ? std::strtoull(words[3], nullptr, 10) : 0);
  std::vector<Bytes> records;
  for (const Bytes& file : files) {
    try {
      records.push_back(pack_jpeg(file));
    } catch (const Unsupported&) {  // is in the corpus for that
    }
  }
  records.push_back(pack_pixels(std::span(files[0]).first(3 * 8 * 9), 8, 9, 3));
  std::signal(SIGABRT, [](int) { save_finding(); });
  std::signal(SIGALRM, [](int) { require(false, "an execution takes too long"); });
  WindowDecoder decoder;
  int64_t num_read = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < executions; ++i) {
    if (i % executions_per_alarm == 0) alarm(time_limit_s);
    const bool is_record = random() % 4 != 0;
    current = mutated(is_record ? records : files, random);
    num_read += is_record ? fuzz_record(decoder, current, random) : fuzz_file(decoder, current, random);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%lld executions, %.0f a second; %lld inputs could be read\n",
              static_cast<long long>(executions), static_cast<double>(executions) / seconds,
              static_cast<long long>(num_read));
}
