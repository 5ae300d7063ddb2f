// Loads in the order of the program (PTX ISA, "ld"): not before what waits for the launch before, as loads of constants may be.
#pragma once

template <unsigned WIDTH>
__device__ __forceinline__ void load_global(float* to, const float* from) {
  if constexpr (WIDTH == 4) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "l"(from));
  } else if constexpr (WIDTH == 2) {
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "l"(from));
  } else {
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(to[0]) : "l"(from));
  }
}
