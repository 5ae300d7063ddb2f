// Floats rounded to the nearest BF16 (PTX ISA, "cvt"; compute capability 8.0).
#pragma once

// Two in one register, the first in its lower half.
__device__ __forceinline__ unsigned cvt_rn_bf16x2(float first, float second) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

__device__ __forceinline__ unsigned short cvt_rn_bf16(float x) {
  unsigned short rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
  return rounded;
}
