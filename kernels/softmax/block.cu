// y = exp(x - max) / sum of exp(x - max), row by row.  X, Y: (m, n) row-major.
//
// A block a row of any length, in three passes: the largest, the sum, the probabilities. What the first pass brought is
// in the caches for the other two while rows in flight fit there; each exp is computed twice rather than stored.
//   block (BLOCK), a multiple of 32; grid (m)
// The textbook's safe softmax; two-level reduction: Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA, 2014).
#include "block_row.cuh"
#include "common/real.cuh"
#include "problem.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
softmax(const REAL* __restrict__ X, REAL* __restrict__ Y SIZE_PARAMETER) {
  __shared__ Sum warp_highest[WARPS], warp_sums[WARPS];
  const size_t row = static_cast<size_t>(blockIdx.x) * N;
  const REAL* x = X + row;
  Sum highest = LOWEST;
#pragma unroll STEPS_TOGETHER
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_pack<VECTOR_WIDTH>(x + j);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) highest = max(highest, Sum(vector.lane[w]));
  }
  highest = block_max(highest, warp_highest);

  Sum sum = 0;
#pragma unroll STEPS_TOGETHER
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    const Vector vector = load_pack<VECTOR_WIDTH>(x + j);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum += exp(Sum(vector.lane[w]) - highest);
  }
  write_row(x, Y + row, highest, block_sum(sum, warp_sums));
}
