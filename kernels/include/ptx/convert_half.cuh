// Two floats rounded to nearest even as two numbers of 16 bits in one register, the first in its lower half (PTX ISA,
// "cvt"; compute capability 8.0).
#pragma once

template <bool IS_BFLOAT16>
__device__ __forceinline__ unsigned cvt_rn_x2(float first, float second) {
  unsigned packed;
  if constexpr (IS_BFLOAT16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  }
  return packed;
}
