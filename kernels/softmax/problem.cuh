// The problem: rows of X, (m, n) row-major, become probabilities, y = exp(x - max) / sum of exp(x - max) over the row,
// in Y, (m, n) row-major. The largest element is taken off first, so that no exp overflows and the sum is at least 1.
#pragma once
#include "common/at_launch.cuh"
#include "common/real.cuh"

#ifndef SHAPE_M
#define SHAPE_M 4096   // rows
#define SHAPE_N 1000   // columns: what the probabilities of a row are shared among
#endif

// Unsigned: an axis may be 2^31 - 1, and the last stride over it then ends beyond a signed int.
#ifdef M_AT_LAUNCH
#define M size_at_launch()
#else
[[maybe_unused]] constexpr unsigned M = SHAPE_M;   // a grid of m blocks need not look
#endif
constexpr unsigned N = SHAPE_N;

// Where a search for the largest starts: the lowest finite number, because minus infinity less itself is no number,
// and a row may hold minus infinities (masked elements; their share is 0).
#if REAL_BYTES <= 4
constexpr Sum LOWEST = -3.402823466e+38f;
#else
constexpr Sum LOWEST = -1.7976931348623157e+308;
#endif

// The largest and the sum over LANES neighbouring lanes, in each of them. Every lane of the warp must call them.
template <unsigned LANES_TOGETHER>
__device__ __forceinline__ Sum lanes_max(Sum value) {
#pragma unroll
  for (unsigned distance = LANES_TOGETHER / 2; distance > 0; distance /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}
template <unsigned LANES_TOGETHER>
__device__ __forceinline__ Sum lanes_sum(Sum value) {
#pragma unroll
  for (unsigned distance = LANES_TOGETHER / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
