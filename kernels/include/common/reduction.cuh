// Sums over threads by shuffles, in a fixed order: the same inputs give the same bits in every run.
#pragma once
#include "common/real.cuh"

// The sum of `value` over the warp, in lane 0. Every lane of the warp must call it.
__device__ __forceinline__ Sum warp_sum(Sum value) {
#pragma unroll
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, distance);
  }
  return value;
}
