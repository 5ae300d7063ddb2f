// y = alpha A x + beta y.  A: (m, n) row-major, x: (n), y: (m).
//
// A block a row, for few and long rows. Each thread sums every BLOCK-th product, each warp adds its lanes up by shuffles,
// and the first warp adds the warps' sums up from shared memory.
//   block (BLOCK), a multiple of 32; grid (m)
// Two-level reduction: Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA, 2014).
#include "common/real.cuh"
#include "common/reduction.cuh"
#include "problem.cuh"
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef UNROLL
#define UNROLL 4   // steps of the walk whose loads are in flight together
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER) {
  constexpr unsigned WARPS = BLOCK / 32;
  constexpr unsigned STEPS = UNROLL;   // nvcc expands no macro in a pragma
  __shared__ Sum warp_sums[WARPS];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x;
  const REAL* a = row_of(A, row);
  Sum sum = 0;
#pragma unroll STEPS
  for (unsigned j = threadIdx.x; j < N; j += BLOCK) sum += a[j] * x[j];

  sum = warp_sum(sum);
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  const Sum total = warp_sum(lane < WARPS ? warp_sums[lane] : Sum(0));
  if (lane == 0) write_y(y, row, alpha, total, beta);
}
