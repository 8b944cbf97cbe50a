#include "runs.h"

#include "idct.h"
#include "isa.h"

namespace ddltrain::image {

namespace {

// Where the coefficient before place k of a block goes; behind the block lies one that nobody reads.
constexpr std::array<uint8_t, 256> make_slots() {
  std::array<uint8_t, 256> slots;
  slots.fill(block_size);
  for (int k = 1; k <= block_size; ++k) {
    slots[static_cast<size_t>(k)] = static_cast<uint8_t>(slot_of_zigzag(k - 1));
  }
  return slots;
}

constexpr std::array<uint8_t, 256> slots = make_slots();

// At least the 57 bits from `position` on.
[[gnu::always_inline]] inline uint64_t bits_at(uint64_t position) {
  return load_big_endian(reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(position >> 3)))
         << (position & 7);
}

// The value behind the symbol that `window` begins with.
[[gnu::always_inline]] inline int value_of_entry(Entry entry, uint64_t window) {
  const auto code_and_value = static_cast<uint32_t>(window >> (-entry & 63));
  return static_cast<int16_t>(code_and_value + (entry >> 16));
}

using Vector [[gnu::vector_size(32), gnu::may_alias]] = int16_t;

// Moves coefficients and leaves zeros; written out, since compilers fill so few bytes with a slow string
// instruction.
[[gnu::always_inline]] inline void move_block(int16_t* from, int16_t* to) {
  for (size_t i = 0; i < block_size * sizeof(int16_t) / sizeof(Vector); ++i) {
    reinterpret_cast<Vector*>(to)[i] = reinterpret_cast<Vector*>(from)[i];
    reinterpret_cast<Vector*>(from)[i] = Vector{};
  }
}

// What is being decoded by one of several lanes. A block is transformed only when the next one has been
// decoded: vectors cannot be loaded from what has just been stored piece by piece, they wait until it has
// reached the cache.
struct Lane {
  alignas(32) std::array<int16_t, block_size + 16> values = {};  // of the block that is being decoded
  alignas(32) std::array<int16_t, block_size> finished = {};     // the block before
  const PlaneTarget* target = nullptr;                           // of the finished block
  uint8_t* samples = nullptr;                                    // null where nobody wants it
  const Run* run = nullptr;
  int mcu = 0, block_in_mcu = 0;
  std::array<int, max_planes> predictions = {};
};

// Where a lane goes on after a block: `ac` is the table of the next block, or null where the lane has ended.
struct Next {
  uint64_t position;
  const Entry* ac;
};

template <Isa isa>
class Decoder;

// Out of the loop over symbols, which needs all registers.
Next end_block_portable(Decoder<Isa::portable>& decoder, Lane& lane, uint64_t position, uint32_t place);
#if defined(__x86_64__)
Next end_block_avx2(Decoder<Isa::avx2>& decoder, Lane& lane, uint64_t position, uint32_t place);
#endif

// Several lanes take turns symbol by symbol, since each has to wait for its own last table look-up.
template <Isa isa>
class Decoder {
 public:
  explicit Decoder(const RunJob& job) : job_(job) {}

  [[gnu::always_inline]] bool decode() {
    State state = {};
    int count = 0;
    for (; count < num_lanes; ++count) {
      const Next next = begin_run(lanes_[count]);
      if (!next.ac) break;
      state.set(count, next);
    }
    if (count > 3) decode_lanes<4>(state);
    if (count > 2 && !is_damaged_) decode_lanes<3>(state);
    if (count > 1 && !is_damaged_) decode_lanes<2>(state);
    if (count > 0 && !is_damaged_) decode_lanes<1>(state);
    return !is_damaged_;
  }

  [[gnu::always_inline]] Next end_block(Lane& lane, uint64_t position, uint32_t place) {
    const Run& run = *lane.run;
    if (place - damage_move < block_size || position > run.end) return damaged();
    render(lane, place);
    if (++lane.block_in_mcu == job_.blocks_per_mcu) {
      lane.block_in_mcu = 0;
      if (++lane.mcu == run.num_mcus) {
        return run.is_whole && position != run.end ? damaged() : begin_run(lane);
      }
    }
    return begin_block(lane, position);
  }

 private:
  static constexpr int num_lanes = 4;

  struct State {
    uint64_t position[num_lanes];
    const Entry* ac[num_lanes];
    uint32_t place[num_lanes];  // in the block, in zigzag order

    void set(int i, const Next& next) {
      position[i] = next.position;
      ac[i] = next.ac;
      place[i] = 1;
    }
  };

  Next damaged() {
    is_damaged_ = true;
    return {0, nullptr};
  }

  [[gnu::always_inline]] Next begin_run(Lane& lane) {
    if (next_run_ == job_.runs.size()) {
      render_finished(lane);
      return {0, nullptr};
    }
    lane.run = &job_.runs[next_run_++];
    lane.mcu = lane.block_in_mcu = 0;
    lane.predictions = {};
    return begin_block(lane, lane.run->begin);
  }

  [[gnu::always_inline]] Next begin_block(Lane& lane, uint64_t position) {
    const int plane = job_.blocks[static_cast<size_t>(lane.block_in_mcu)].plane;
    const auto p = static_cast<size_t>(plane), code = static_cast<size_t>(code_of(plane));
    const uint64_t window = bits_at(position);
    const Entry entry = job_.lookup->dc[code][window >> (64 - dc_lookup_bits)];
    if ((entry >> 8 & 255) == damage_move) return damaged();
    lane.predictions[p] += value_of_entry(entry, window);
    lane.values[0] = static_cast<int16_t>(lane.predictions[p]);
    return {position + (entry & 255), job_.lookup->ac[code].data()};
  }

  [[gnu::always_inline]] void render(Lane& lane, uint32_t place) {
    const McuBlock& block = job_.blocks[static_cast<size_t>(lane.block_in_mcu)];
    const PlaneTarget& target = job_.targets[static_cast<size_t>(block.plane)];
    const int x = (lane.run->mcu_x + lane.mcu) * block.h_samp + block.x - target.first_x;
    const int y = lane.run->mcu_y * block.v_samp + block.y - target.first_y;
    const bool is_wanted = static_cast<unsigned>(x) < static_cast<unsigned>(target.blocks_wide) &&
                           static_cast<unsigned>(y) < static_cast<unsigned>(target.blocks_high);
    uint8_t* samples = is_wanted ? target.samples + y * block_side * target.stride + x * block_side : nullptr;
    if (place == end_move + 1) {  // nothing but the DC coefficient, which the next block overwrites
      if (is_wanted) fill(samples, target.stride, flat_sample(lane.values[0], target.steps[0]));
      return;
    }
    render_finished(lane);
    move_block(lane.values.data(), lane.finished.data());
    lane.target = &target;
    lane.samples = samples;
  }

  [[gnu::always_inline]] void render_finished(Lane& lane) {
    if (!lane.samples) return;
    const int16_t* steps = lane.target->steps.data();
    if constexpr (isa == Isa::avx2) {
      idct_avx2(lane.finished.data(), steps, lane.samples, lane.target->stride);
    } else {
      idct_portable(lane.finished.data(), steps, lane.samples, lane.target->stride);
    }
  }

  [[gnu::always_inline]] static void fill(uint8_t* samples, ptrdiff_t stride, uint8_t value) {
    for (int row = 0; row < block_side; ++row) std::memset(samples + row * stride, value, block_side);
  }

  // Decodes until one of `count` lanes has ended. The last of them then takes its place.
  template <int count>
  [[gnu::always_inline]] void decode_lanes(State& outer) {
    State state = outer;
    uint64_t window[count];
    while (end_blocks<count>(state, window)) {
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) window[i] = bits_at(state.position[i]);
      take_symbols<count>(state, window);
      if (!end_blocks<count>(state, window)) break;
      take_symbols<count>(state, window);  // two symbols have at most 40 bits
    }
    outer = state;
  }

  template <int count>
  [[gnu::always_inline]] void take_symbols(State& state, uint64_t (&window)[count]) {
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      const Entry entry = state.ac[i][window[i] >> (64 - ac_lookup_bits)];
      state.place[i] += entry >> 8 & 255;
      lanes_[i].values[slots_[state.place[i]]] = static_cast<int16_t>(value_of_entry(entry, window[i]));
      window[i] <<= entry & 63;
      state.position[i] += entry & 255;
    }
  }

  template <int count>
  [[gnu::always_inline]] bool end_blocks(State& state, uint64_t (&window)[count]) {
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      if (state.place[i] < block_size) continue;
      Next next;
      if constexpr (isa == Isa::avx2) {
        next = end_block_avx2(*this, lanes_[i], state.position[i], state.place[i]);
      } else {
        next = end_block_portable(*this, lanes_[i], state.position[i], state.place[i]);
      }
      if (!next.ac) {
        constexpr int last = count - 1;
        lanes_[i] = lanes_[last];
        state.set(i, {state.position[last], state.ac[last]});
        state.place[i] = state.place[last];
        return false;
      }
      state.set(i, next);
      window[i] = bits_at(next.position);
    }
    return true;
  }

  const RunJob& job_;
  size_t next_run_ = 0;
  bool is_damaged_ = false;
  const std::array<uint8_t, 256> slots_ = slots;  // near the lanes, where it needs no register
  Lane lanes_[num_lanes];
};

[[gnu::noinline]] Next end_block_portable(Decoder<Isa::portable>& decoder, Lane& lane, uint64_t position,
                                          uint32_t place) {
  return decoder.end_block(lane, position, place);
}

bool decode_portable(const RunJob& job) { return Decoder<Isa::portable>(job).decode(); }

#if defined(__x86_64__)
[[gnu::noinline, gnu::target("avx2,bmi2")]] Next end_block_avx2(Decoder<Isa::avx2>& decoder, Lane& lane,
                                                                uint64_t position, uint32_t place) {
  return decoder.end_block(lane, position, place);
}

[[gnu::target("avx2,bmi2")]] bool decode_avx2(const RunJob& job) { return Decoder<Isa::avx2>(job).decode(); }
#endif

}  // namespace

bool decode_runs(const RunJob& job) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return decode_avx2(job);
#endif
  return decode_portable(job);
}

}  // namespace ddltrain::image
