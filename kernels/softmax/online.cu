// y = exp(x - max) / sum of exp(x - max), row by row.  X, Y: (m, n) row-major.
//
// A block a row of any length, in two passes instead of three: largest and sum are found together. A thread's sum is
// that of exp(x - the largest it has met); when a larger one comes, the sum so far is multiplied by exp(old - new). At
// the end each thread's sum is brought to the row's largest in the same way, then they are added.
//   block (BLOCK), a multiple of 32; grid (m)
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
#include "block_row.cuh"
#include "common/real.cuh"
#include "problem.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
softmax(const REAL* __restrict__ X, REAL* __restrict__ Y SIZE_PARAMETER) {
  __shared__ Sum warp_highest[WARPS], warp_sums[WARPS];
  const size_t row = static_cast<size_t>(blockIdx.x) * N;
  const REAL* x = X + row;
  Sum highest = LOWEST, sum = 0;
#pragma unroll STEPS_TOGETHER
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_pack<VECTOR_WIDTH>(x + j);
    Sum higher = highest;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) higher = max(higher, Sum(vector.lane[w]));
    if (higher > highest) {
      sum *= exp(highest - higher);
      highest = higher;
    }
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum += exp(Sum(vector.lane[w]) - highest);
  }
  const Sum row_highest = block_max(highest, warp_highest);
  sum *= exp(highest - row_highest);
  write_row(x, Y + row, row_highest, block_sum(sum, warp_sums));
}
