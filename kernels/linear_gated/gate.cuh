// An element of Y from its two sums: the activated one times the other.
//
// Where exp or erfc underflow, an activated number has few digits or none: below the smallest normal number it is 0, so
// that its product with an infinity is NaN whatever the function left of it. relu leaves all digits.
#pragma once
#include "common/activation_half.cuh"

__device__ __forceinline__ float gated(float gate, float up) {
  float activated = activate_for_half(gate);
#ifndef ACTIVATION_RELU
  if (fabsf(activated) < 0x1p-126f) activated = 0.0f;
#endif
  return activated * up;
}
