#include "reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "half.h"

namespace ddltrain {

namespace {

template <typename T>
constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// What T is computed in.
template <typename T>
using Wide = std::conditional_t<is_half<T>, float, T>;

template <typename T>
[[gnu::always_inline]] inline Wide<T> load(const T& value) {
  if constexpr (is_half<T>) {
    return widen(value);
  } else {
    return value;
  }
}

template <typename T>
[[gnu::always_inline]] inline T store(Wide<T> value) {
  if constexpr (is_half<T>) {
    return narrow(value, T{});
  } else {
    return value;
  }
}

struct Sum {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {  // overflow wraps around, as in MPI
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    } else {
      return a + b;
    }
  }
};

// The same bits in either order of operands, so that ranks that pair the same values agree.
template <bool is_max>
struct Extreme {
  template <typename T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return (a < b) == is_max ? b : a;
    } else {
      using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
      const Bits bits_a = std::bit_cast<Bits>(a), bits_b = std::bit_cast<Bits>(b);
      const T equal = std::bit_cast<T>(is_max ? bits_a & bits_b : bits_a | bits_b);  // matters for zeros
      const T lesser = is_max ? b : a, greater = is_max ? a : b;
      const T same_or_nan = a == b ? equal : a + b;
      return a < b ? lesser : (b < a ? greater : same_or_nan);
    }
  }
};

template <typename T, typename Other, typename Op>
struct ReduceInto {
  [[gnu::always_inline]] static void run(void* own, const void* other, int64_t count) {
    T* __restrict a = static_cast<T*>(own);
    const Other* __restrict b = static_cast<const Other*>(other);
    for (int64_t i = 0; i < count; ++i) a[i] = store<T>(Op::apply(load(a[i]), Wide<T>(load(b[i]))));
  }
};

// out = a (op) b in the dtype that is computed in.
template <typename T, typename Op>
struct Combine {
  [[gnu::always_inline]] static void run(Wide<T>* out, const void* first, const void* second, int64_t count) {
    Wide<T>* __restrict sum = out;
    const T* __restrict a = static_cast<const T*>(first);
    const T* __restrict b = static_cast<const T*>(second);
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::apply(load(a[i]), load(b[i]));
  }
};

template <typename T, typename Op>
struct Accumulate {
  [[gnu::always_inline]] static void run(Wide<T>* out, const void* source, int64_t count) {
    Wide<T>* __restrict sum = out;
    const T* __restrict a = static_cast<const T*>(source);
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::apply(sum[i], load(a[i]));
  }
};

template <typename T>
struct Widen {
  [[gnu::always_inline]] static void run(Wide<T>* out, const void* source, int64_t count) {
    Wide<T>* __restrict wide = out;
    const T* __restrict a = static_cast<const T*>(source);
    for (int64_t i = 0; i < count; ++i) wide[i] = load(a[i]);
  }
};

template <typename T>
struct Narrow {
  [[gnu::always_inline]] static void run(void* out, const Wide<T>* source, int64_t count) {
    T* __restrict target = static_cast<T*>(out);
    const Wide<T>* __restrict a = source;
    for (int64_t i = 0; i < count; ++i) target[i] = store<T>(a[i]);
  }
};

template <typename T>
struct Scale {
  [[gnu::always_inline]] static void run(void* data, int64_t count, double factor) {
    T* __restrict a = static_cast<T*>(data);
    const auto wide_factor = static_cast<Wide<T>>(factor);
    for (int64_t i = 0; i < count; ++i) a[i] = store<T>(load(a[i]) * wide_factor);
  }
};

template <typename T>
struct Round {
  [[gnu::always_inline]] static void run(float* own, int64_t count) {
    for (int64_t i = 0; i < count; ++i) own[i] = widen(narrow_for_wire<T>(own[i]));
  }
};

template <typename T>
struct Pack {
  [[gnu::always_inline]] static void run(float* own, void* packed, int64_t count) {
    float* __restrict a = own;
    T* __restrict out = static_cast<T*>(packed);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = narrow_for_wire<T>(a[i]);
      a[i] = widen(out[i]);
    }
  }
};

template <typename T>
struct PackKeeping {
  [[gnu::always_inline]] static void run(float* own, void* packed, float* residual, int64_t count) {
    float* __restrict a = own;
    float* __restrict kept = residual;
    T* __restrict out = static_cast<T*>(packed);
    for (int64_t i = 0; i < count; ++i) {
      out[i] = narrow_for_wire<T>(a[i]);
      const float rounded = widen(out[i]);
      // What is beyond the largest, or NaN, is not kept: giving it back would fill many steps.
      const bool fits = a[i] >= -largest(T{}) && a[i] <= largest(T{});
      kept[i] += fits ? a[i] - rounded : 0.0F;
      a[i] = rounded;
    }
  }
};

#if defined(__x86_64__)
template <typename Kernel, typename... Args>
[[gnu::target("avx2")]] void on_avx2(Args... args) {
  Kernel::run(args...);
}

template <typename Kernel, typename... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void on_avx512(Args... args) {
  Kernel::run(args...);
}
#endif

Isa chosen_isa = best_isa();

template <typename Kernel, typename... Args>
void run(Args... args) {
#if defined(__x86_64__)
  if (chosen_isa == Isa::avx512) return on_avx512<Kernel>(args...);
  if (chosen_isa == Isa::avx2) return on_avx2<Kernel>(args...);
#endif
  Kernel::run(args...);
}

// Calls use(T{}) with the type of `dtype`.
template <typename Use>
void with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::float32:
      return use(float{});
    case DType::float64:
      return use(double{});
    case DType::int32:
      return use(int32_t{});
    case DType::int64:
      return use(int64_t{});
    case DType::float16:
      return use(Float16{});
    case DType::bfloat16:
      return use(BFloat16{});
  }
}

template <typename Use>
void with_op(ReduceOp op, Use use) {
  if (op == ReduceOp::min) return use(Extreme<false>{});
  if (op == ReduceOp::max) return use(Extreme<true>{});
  use(Sum{});
}

// Elements of a block, which stays in the first-level cache between the steps of a reduction.
constexpr int64_t block_count = 1024;

template <typename T, typename Op>
void reduce_block(std::span<std::byte* const> sources, std::span<std::byte* const> targets, int64_t offset,
                  int64_t count, double factor) {
  alignas(64) std::array<Wide<T>, block_count> sum;
  alignas(64) std::array<T, block_count> result;
  const auto at = [offset](std::byte* base) { return base + offset * static_cast<int64_t>(sizeof(T)); };
  if (sources.size() == 1) {
    run<Widen<T>, Wide<T>*, const void*>(sum.data(), at(sources[0]), count);
  } else {
    run<Combine<T, Op>, Wide<T>*, const void*, const void*>(sum.data(), at(sources[0]), at(sources[1]),
                                                            count);
  }
  for (size_t i = 2; i < sources.size(); ++i) {
    run<Accumulate<T, Op>, Wide<T>*, const void*>(sum.data(), at(sources[i]), count);
  }
  if (factor != 1) run<Scale<Wide<T>>, void*>(sum.data(), count, factor);
  const void* reduced = sum.data();
  if constexpr (is_half<T>) {
    run<Narrow<T>, void*, const Wide<T>*>(result.data(), sum.data(), count);
    reduced = result.data();
  }
  // Plain stores: the targets have just been read, so stores that go past the caches save nothing.
  for (std::byte* target : targets) std::memcpy(at(target), reduced, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2")) return Isa::avx2;
#endif
  return Isa::portable;
}

void set_isa(Isa isa) { chosen_isa = std::min(isa, best_isa()); }

void reduce_into(void* own, const void* other, int64_t count, DType dtype, ReduceOp op) {
  with_type(dtype, [&]<typename T>(T) {
    with_op(op, [&]<typename Op>(Op) { run<ReduceInto<T, T, Op>, void*>(own, other, count); });
  });
}

void reduce_wire_into(float* own, const void* other, int64_t count, Wire wire, ReduceOp op) {
  with_op(op, [&]<typename Op>(Op) {
    if (wire == Wire::float16) return run<ReduceInto<float, Float16, Op>, void*>(own, other, count);
    run<ReduceInto<float, BFloat16, Op>, void*>(own, other, count);
  });
}

void reduce_ranks(std::span<std::byte* const> sources, std::span<std::byte* const> targets, int64_t count,
                  DType dtype, ReduceOp op, double factor) {
  with_type(dtype, [&]<typename T>(T) {
    with_op(op, [&]<typename Op>(Op) {
      for (int64_t done = 0; done < count; done += block_count) {
        reduce_block<T, Op>(sources, targets, done, std::min(block_count, count - done), factor);
      }
    });
  });
}

void scale(void* data, int64_t count, DType dtype, double factor) {
  with_type(dtype, [&]<typename T>(T) {
    if constexpr (std::is_integral_v<T>) {
      throw std::invalid_argument("integers cannot be scaled");
    } else {
      run<Scale<T>>(data, count, factor);
    }
  });
}

void pack(float* own, void* packed, int64_t count, Wire wire) {
  if (wire == Wire::float16) return run<Pack<Float16>>(own, packed, count);
  run<Pack<BFloat16>>(own, packed, count);
}

void pack_keeping(float* own, void* packed, float* residual, int64_t count, Wire wire) {
  if (wire == Wire::float16) return run<PackKeeping<Float16>>(own, packed, residual, count);
  run<PackKeeping<BFloat16>>(own, packed, residual, count);
}

void round_to(float* own, int64_t count, Wire wire) {
  if (wire == Wire::float16) return run<Round<Float16>>(own, count);
  run<Round<BFloat16>>(own, count);
}

void unpack(float* own, const void* packed, int64_t count, Wire wire) {
  if (wire == Wire::float16) return run<Widen<Float16>>(own, packed, count);
  run<Widen<BFloat16>>(own, packed, count);
}

}  // namespace ddltrain
