// Which instructions the kernels use. All kernels give the same bits with any of them.
#pragma once

namespace ddltrain::image {

enum class Isa { portable, avx2 };  // avx2: with BMI2, which comes with it

// The best that this machine has, unless a test chose otherwise.
Isa isa();

// Chooses the kernels, for tests; not while kernels run. Asking for more than the machine has gives its best.
void set_isa(Isa wanted);

#if defined(__x86_64__)
template <typename Kernel, typename... Args>
[[gnu::target("avx2")]] void on_avx2(Args... args) {
  Kernel::run(args...);
}
#endif

// Runs Kernel::run(args...), which is a plain loop to be inlined, as compiled for the chosen instructions.
template <typename Kernel, typename... Args>
void run_best(Args... args) {
#if defined(__x86_64__)
  if (isa() == Isa::avx2) return on_avx2<Kernel>(args...);
#endif
  Kernel::run(args...);
}

}  // namespace ddltrain::image
