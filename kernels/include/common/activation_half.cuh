// What activation.cuh computes, of sums that are rounded to 16 bits next: by the hardware's exponential and reciprocal. A
// warpgroup multiplies nothing while it activates, which by the standard functions takes as long as some hundred k.
//
// The result is off by no more than 2^-16 of itself (2^-21 from -1 on), and where it is below float32's normal numbers by
// one of them: inside of what the reference grants to sums (linear/reference.py).
#pragma once
#include "common/activation.cuh"

#ifdef __CUDA_ARCH__
// PTX ISA, "ex2" and "rcp": within 2 ulp and 1 ulp.
__device__ __forceinline__ float ex2_approx(float x) {
  float power;
  asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
#endif

__device__ __forceinline__ float activate_for_half(float z) {
#ifndef __CUDA_ARCH__
  return activate(z);
#elif defined(ACTIVATION_SIGMOID)
  return rcp_approx(1.0f + ex2_approx(-1.44269504f * z));
#elif defined(ACTIVATION_SILU)
  const float shrunk = ex2_approx(-1.44269504f * fabsf(z));
  return z * (z < 0.0f ? shrunk : 1.0f) * rcp_approx(1.0f + shrunk);
#elif defined(ACTIVATION_GELU)
  // erfc(x) = t exp(p(t) - x^2) with t = 1 / (1 + x / 2), within 1.2e-7 of itself: Press et al., "Numerical Recipes in C"
  // (1992), section 6.2. Here x = |z| / sqrt 2, and powers are of two: p times log2(e), less 1 for half of erfc.
  constexpr float P[] = {-2.82574822f, 1.44272920f, 0.53970062f, 0.13963006f, -0.26875686f,
                         0.40232158f, -1.63775315f, 2.14747446f, -1.18611495f, 0.24651730f};
  const float t = rcp_approx(fmaf(fabsf(z), 0.35355339f, 1.0f)), x = 0.84932180f * z;
  float p = P[9];
#pragma unroll
  for (int i = 8; i >= 0; --i) p = fmaf(p, t, P[i]);
  const float tail = t * ex2_approx(fmaf(-x, x, p));
  return z * (z < 0.0f ? tail : 1.0f - tail);
#else
  return activate(z);
#endif
}
