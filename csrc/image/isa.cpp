#include "isa.h"

#include <algorithm>

namespace ddltrain::image {

namespace {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) return Isa::avx2;
#endif
  return Isa::portable;
}

Isa chosen_isa = best_isa();

}  // namespace

Isa isa() { return chosen_isa; }

void set_isa(Isa wanted) { chosen_isa = std::min(wanted, best_isa()); }

}  // namespace ddltrain::image
