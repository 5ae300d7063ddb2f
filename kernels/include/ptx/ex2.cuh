// Two to the power of a float, off by at most 2 units in the last place; results below 2^-126 are zero (PTX ISA, "ex2").
#pragma once

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
