// Two FP16 numbers in a register, the first in its lower half (PTX ISA, "cvt", "min", "st"; compute capability 8.0).
#pragma once

__device__ __forceinline__ void widen_x2(unsigned pair, float& first, float& second) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
      : "=f"(first), "=f"(second) : "r"(pair));
}

// The smaller of two magnitudes, in either half by itself; NaN where one of them is.
__device__ __forceinline__ unsigned least_magnitude_x2(unsigned least, unsigned pair) {
  unsigned result;
  asm("{\n.reg .b32 m;\nabs.f16x2 m, %2;\nmin.NaN.f16x2 %0, %1, m;\n}\n" : "=r"(result) : "r"(least), "r"(pair));
  return result;
}

// The largest number that a lane of the warp has.
__device__ __forceinline__ unsigned warp_max(unsigned x) { return __reduce_max_sync(0xffffffffu, x); }

__device__ __forceinline__ void st_shared_b32(unsigned address, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
