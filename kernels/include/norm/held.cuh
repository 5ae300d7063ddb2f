// Normalisation with a row in registers: THREADS_PER_ROW threads hold it, a block has ROWS rows. What is normalised is
// read once; the mean is taken off before squares are added up, so that none of their digits cancel.
//   block (THREADS_PER_ROW * ROWS), whole warps; grid (ceil(m / ROWS))
#pragma once
#include "norm/row.cuh"

#ifndef THREADS_PER_ROW
#define THREADS_PER_ROW 256
#endif
#ifndef ROWS
#define ROWS 1   // of a block
#endif

constexpr unsigned BLOCK_THREADS = THREADS_PER_ROW * ROWS;
constexpr unsigned STEP = THREADS_PER_ROW * VECTOR_WIDTH;   // elements of a row that its threads load at once
constexpr unsigned STEPS = (N + STEP - 1) / STEP;

__device__ __forceinline__ void normalise_held(const Arrays& arrays, float eps) {
  [[maybe_unused]] __shared__ Sum sums[BLOCK_THREADS / 32], squares[BLOCK_THREADS / 32];
  const unsigned first = threadIdx.x % THREADS_PER_ROW * VECTOR_WIDTH;
  const unsigned row = blockIdx.x * ROWS + threadIdx.x / THREADS_PER_ROW;
  // Past the end: the last row again, and no write, because reductions want every thread.
  const size_t start = static_cast<size_t>(row < M ? row : M - 1) * N;
  Sum held[STEPS][VECTOR_WIDTH], mean = 0, sum = 0;
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    const unsigned column = first + s * STEP;
    const bool is_inside = N % STEP == 0 || column < N;
    const Vector x = is_inside ? load_summed(arrays, start + column) : Vector{};
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) held[s][w] = is_inside ? Sum(x.lane[w]) : Sum(0);
  }
#if CENTRED
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) mean += held[s][w];
  }
  mean = team_sum<THREADS_PER_ROW>(mean, sums) / N;
#endif
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (N % STEP != 0 && first + s * STEP >= N) continue;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum += (held[s][w] - mean) * (held[s][w] - mean);
  }
  const Sum scale = rsqrt(team_sum<THREADS_PER_ROW>(sum, squares) / N + eps);
  if (row >= M) return;
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    const unsigned column = first + s * STEP;
    if (N % STEP != 0 && column >= N) continue;
#if RESIDUAL   // here, because no load may pass a store that might be to its address
    Vector x;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) x.lane[w] = held[s][w];
    store_pack<VECTOR_WIDTH>(arrays.S + start + column, x);
#endif
    write_normalised(arrays, start + column, column, held[s], mean, scale);
  }
}
