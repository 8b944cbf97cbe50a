// Arithmetic on ranges of memory at the speed of memory: sums, minima, conversions.
//
// Every kernel is compiled for AVX-512, for AVX2 and for any machine, and the best is chosen at run time. All
// give the same bits, whatever the split into ranges, since every element is computed alone and in one order.
// 16-bit floats are computed in float32. min and max give NaN where an operand is NaN, and -0 is below +0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "types.h"

namespace ddltrain {

enum class Isa { portable, avx2, avx512 };

Isa best_isa();
// Chooses the kernels, for tests; not while kernels run. Asking for more than the machine has gives its best.
void set_isa(Isa isa);

// own = own (op) other, element by element. `avg` is a sum here: contributions were scaled before.
void reduce_into(void* own, const void* other, int64_t count, DType dtype, ReduceOp op);

// own = own (op) other, where `other` came in 16 bits.
void reduce_wire_into(float* own, const void* other, int64_t count, Wire wire, ReduceOp op);

// Writes to all `targets` the reduction of `sources` in their order, times `factor`. A target may be a
// source.
void reduce_ranks(std::span<std::byte* const> sources, std::span<std::byte* const> targets, int64_t count,
                  DType dtype, ReduceOp op, double factor);

// data = data * factor, for floating-point dtypes.
void scale(void* data, int64_t count, DType dtype, double factor);

// Rounds `own` to 16 bits, in place and into `packed`, so that sender and receiver hold the same value. What
// is finite stays so.
void pack(float* own, void* packed, int64_t count, Wire wire);
// The same, and adds to `residual` what rounding takes away; not where a value is beyond what 16 bits hold.
void pack_keeping(float* own, void* packed, float* residual, int64_t count, Wire wire);
// The same, in place only.
void round_to(float* own, int64_t count, Wire wire);
void unpack(float* own, const void* packed, int64_t count, Wire wire);

}  // namespace ddltrain
