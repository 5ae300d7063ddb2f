// Normalisation of rows of any length: a block walks along its row two times, or three where it is CENTRED. What the first
// walk brought is in the caches for the others while the rows in flight fit there.
//   block (BLOCK), whole warps; grid (m)
#pragma once
#include "norm/row.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif

constexpr unsigned STEP = BLOCK * VECTOR_WIDTH;   // elements that the block passes at once

__device__ __forceinline__ void normalise_walking(const Arrays& arrays, float eps) {
  [[maybe_unused]] __shared__ Sum sums[BLOCK / 32], squares[BLOCK / 32];
  const size_t start = static_cast<size_t>(blockIdx.x) * N;
  const REAL* const x = RESIDUAL ? arrays.S : arrays.X;   // of the walks after the first: each thread reads what it wrote
  Sum mean = 0, sum = 0;
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_summed(arrays, start + j);
    if (RESIDUAL) store_pack<VECTOR_WIDTH>(arrays.S + start + j, vector);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) {
      if (CENTRED) mean += Sum(vector.lane[w]);
      else sum += Sum(vector.lane[w]) * Sum(vector.lane[w]);
    }
  }
#if CENTRED
  mean = team_sum<BLOCK>(mean, sums) / N;
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_pack<VECTOR_WIDTH>(x + start + j);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) {
      const Sum distance = Sum(vector.lane[w]) - mean;
      sum += distance * distance;
    }
  }
#endif
  const Sum scale = rsqrt(team_sum<BLOCK>(sum, squares) / N + eps);
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_pack<VECTOR_WIDTH>(x + start + j);
    Sum wide[VECTOR_WIDTH];
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) wide[w] = vector.lane[w];
    write_normalised(arrays, start + j, j, wide, mean, scale);
  }
}
