// The activation that the problem asks for: ACTIVATION_RELU, _SIGMOID, _TANH or _GELU is defined as 1, or none of them.
//
// The standard functions in the element type, no fast-math intrinsics: one call per output is little beside k products.
//   relu     max(z, 0), written so that a NaN stays one
//   sigmoid  1 / (1 + exp(-z)); exp overflows only where the result is below the smallest normal number, and gives 0
//   gelu     z Phi(z), Phi the normal distribution function: the exact form by the error function, not the one by tanh.
//            Phi(z) = (1 + erf(z / sqrt 2)) / 2 loses all digits for negative z; erfc(-z / sqrt 2) / 2 keeps them.
#pragma once
#include "common/real.cuh"

__device__ __forceinline__ REAL activate(REAL z) {
#if defined(ACTIVATION_RELU)
  return z < REAL(0) ? REAL(0) : z;
#elif defined(ACTIVATION_SIGMOID)
  return REAL(1) / (REAL(1) + exp(-z));
#elif defined(ACTIVATION_TANH)
  return tanh(z);
#elif defined(ACTIVATION_GELU)
  constexpr REAL SQRT_HALF = REAL(0.70710678118654752440);
  return REAL(0.5) * z * erfc(-SQRT_HALF * z);
#else
  return z;
#endif
}
