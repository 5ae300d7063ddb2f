// Scores become shares, tile by tile: what they are to the largest score so far, times 2^15, so that FP16 parts hold small ones.
#pragma once
#include "exact.cuh"
#include "ptx/ex2.cuh"

constexpr float LOWEST = -3.402823466e+38f, SHARE_POWER = 15.0f;
#define MINUS_INFINITY __uint_as_float(0xff800000u)

// Largest score and sum of shares of a thread's two rows; of the sum the part that is its own.
struct Softmax {
  float highest[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {0.0f, 0.0f};

  // Turns scores into shares; returns by what all shares before are to be multiplied.
  __device__ __forceinline__ void take(float (&score)[TILE_KEYS / 2], const Rows& rows, float (&since)[2]) {
#pragma unroll
    for (unsigned row = 0; row < 2; ++row) {
      float higher = highest[row];
#pragma unroll
      for (unsigned i = 0; i < TILE_KEYS / 4; ++i) higher = fmaxf(higher, score[i / 2 * 4 + row * 2 + i % 2]);
      higher = fmaxf(higher, __shfl_xor_sync(0xffffffffu, higher, 1));
      higher = fmaxf(higher, __shfl_xor_sync(0xffffffffu, higher, 2));
      // Where every key so far is masked, there is nothing to take away.
      const float base = higher == MINUS_INFINITY ? 0.0f : higher;
      since[row] = ex2_approx((highest[row] - base) * rows.factor[row]);
      highest[row] = higher;
      float total = 0.0f;
#pragma unroll
      for (unsigned i = 0; i < TILE_KEYS / 4; ++i) {
        float& own = score[i / 2 * 4 + row * 2 + i % 2];
        own = ex2_approx(fmaf(own - base, rows.factor[row], SHARE_POWER));
        total += own;
      }
      sum[row] = fmaf(sum[row], since[row], total);
    }
  }

  // One over the sum of a row, 0 where every key is masked.
  __device__ __forceinline__ float inverse(unsigned row) const {
    float total = sum[row];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    return total == 0.0f ? 0.0f : 1.0f / total;
  }
};

// Takes the keys' scales away.
__device__ __forceinline__ void unscale(float (&score)[TILE_KEYS / 2], unsigned factors) {
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 8; ++i) {
    float first, second;
    ld_shared_v2(first, second, factors + (i * 8 + threadIdx.x % 4 * 2) * 4);
    score[4 * i] *= first, score[4 * i + 1] *= second;
    score[4 * i + 2] *= first, score[4 * i + 3] *= second;
  }
}

// Adds a mask, and leaves out what no key or no earlier key is.
__device__ __forceinline__ void mask_scores(
    float (&score)[TILE_KEYS / 2], const Rows& rows, const float* __restrict__ M, unsigned first) {
  if constexpr (HAS_MASK) {
#pragma unroll
    for (unsigned row = 0; row < 2; ++row) {
      const float* const mask = M + ROW_M * tw::min(rows.query(row), QUERIES - 1);
      const float multiplier = LOG2_E / rows.factor[row];
#pragma unroll
      for (unsigned i = 0; i < TILE_KEYS / 4; ++i) {
        float& own = score[i / 2 * 4 + row * 2 + i % 2];
        const unsigned key = first + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        const float added = __ldg(mask + tw::min(key, KEYS - 1));
        own = fmaf(added, multiplier, own);
        if (added >= LOWEST && own < LOWEST) own = LOWEST;   // large, but not infinite; NaN stays
      }
    }
  }
  const bool ends = first + TILE_KEYS > KEYS, crosses = IS_CAUSAL && first + TILE_KEYS > rows.first - rows.first % 64;
  if (!ends && !crosses) return;
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 2; ++i) {
    const unsigned key = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (key >= KEYS || (IS_CAUSAL && key > rows.query(i / 2 % 2))) score[i] = MINUS_INFINITY;
  }
}
