// Products by multiply-adds of FP32, for tiles that two FP16 parts do not hold: rare, and as slow as that is.
#pragma once
#include "queries.cuh"

// Scores of the warp's rows with the keys of a tile.
__device__ __forceinline__ void exact_scores(
    float (&score)[TILE_KEYS / 2], const Rows& rows, const float* __restrict__ Q, const float* __restrict__ K,
    unsigned first) {
  float made[TILE_KEYS / 2];
#pragma unroll 1
  for (unsigned i = 0; i < TILE_KEYS / 2; ++i) {
    const unsigned row = i / 2 % 2, key = tw::min(first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, KEYS - 1);
    const float* const q = Q + ROW_Q * tw::min(rows.first + 8 * row, QUERIES - 1);
    float sum = 0.0f;
#pragma unroll 1
    for (unsigned d = 0; d < DEPTH; ++d) sum = fmaf(q[d], K[ROW_K * key + d], sum);
    made[i] = sum * (row == 0 ? rows.scaled_by[0] : rows.scaled_by[1]);
  }
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 2; ++i) score[i] = made[i];
}

// Adds the shares of a tile's keys times their values.
__device__ __forceinline__ void add_exact_values(
    float (&output)[DEPTH / 2], const float (&share)[TILE_KEYS / 2], const float* __restrict__ V, unsigned first) {
  float shares[TILE_KEYS / 2], made[DEPTH / 2];
#pragma unroll
  for (unsigned i = 0; i < TILE_KEYS / 2; ++i) shares[i] = share[i];
#pragma unroll 1
  for (unsigned i = 0; i < DEPTH / 2; ++i) made[i] = 0.0f;
  const unsigned lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned j = 0; j < tw::min(KEYS_TOGETHER, KEYS - first); ++j) {
    const unsigned holder = lane / 4 * 4 + j % 8 / 2, place = j / 8 * 4 + j % 2;
    const float upper = __shfl_sync(0xffffffffu, shares[place], holder);
    const float lower = __shfl_sync(0xffffffffu, shares[place + 2], holder);
    const float* const v = V + ROW_V * (first + j);
#pragma unroll 1
    for (unsigned i = 0; i < DEPTH / 2; ++i) {
      const float p = i / 2 % 2 ? lower : upper;
      if (p != 0.0f) made[i] = fmaf(p, v[i / 4 * 8 + lane % 4 * 2 + i % 2], made[i]);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < DEPTH / 2; ++i) output[i] += made[i];
}
