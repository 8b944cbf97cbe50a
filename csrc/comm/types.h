// Words that all of comm/ shares.
#pragma once

#include <cstdint>

namespace ddltrain {

enum class DType { float32, float64, int32, int64, float16, bfloat16 };

// `avg` is a sum of contributions that were each divided by the number of ranks.
enum class ReduceOp { sum, avg, min, max };

// What float32 elements become on their way between hosts.
enum class Wire { same, float16, bfloat16 };

constexpr int64_t dtype_bytes(DType dtype) {
  if (dtype == DType::float64 || dtype == DType::int64) return 8;
  return dtype == DType::float16 || dtype == DType::bfloat16 ? 2 : 4;
}

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[] = {"float32", "float64", "int32", "int64", "float16", "bfloat16"};
  return names[static_cast<int>(dtype)];
}

constexpr DType wire_dtype(Wire wire) { return wire == Wire::float16 ? DType::float16 : DType::bfloat16; }

}  // namespace ddltrain
