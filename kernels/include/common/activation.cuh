// The activation that the problem asks for: ACTIVATION_RELU, _SIGMOID, _TANH, _GELU or _SILU is defined as 1, or none of
// them.
//
// The standard functions in the type of the sums, no fast-math intrinsics: one call per output is little beside k products.
//   relu     max(z, 0), written so that a NaN stays one
//   sigmoid  1 / (1 + exp(-z)); exp overflows only where the result is below the smallest normal number, and gives 0
//   silu     z sigmoid(z), by exp(-|z|): 1 + exp(-z) overflows where z times sigmoid is still a normal number
//   gelu     z Phi(z), Phi the normal distribution function: the exact form by the error function, not the one by tanh.
//            Phi(z) = (1 + erf(z / sqrt 2)) / 2 loses all digits for negative z; erfc(-z / sqrt 2) / 2 keeps them.
#pragma once
#include "common/real.cuh"

__device__ __forceinline__ Sum activate(Sum z) {
#if defined(ACTIVATION_RELU)
  return z < Sum(0) ? Sum(0) : z;
#elif defined(ACTIVATION_SIGMOID)
  return Sum(1) / (Sum(1) + exp(-z));
#elif defined(ACTIVATION_TANH)
  return tanh(z);
#elif defined(ACTIVATION_GELU)
  constexpr Sum SQRT_HALF = Sum(0.70710678118654752440);
  return Sum(0.5) * z * erfc(-SQRT_HALF * z);
#elif defined(ACTIVATION_SILU)
  const Sum shrunk = exp(-fabs(z));
  return z * (z < Sum(0) ? shrunk : Sum(1)) / (Sum(1) + shrunk);
#else
  return z;
#endif
}
