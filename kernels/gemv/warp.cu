// y = alpha A x + beta y.  A: (m, n) row-major, x: (n), y: (m).
//
// A warp takes ROWS_PER_WARP neighbouring rows. Its lanes walk along them side by side, so that every load is one run of
// 32 elements and each element of x serves all these rows; shuffles then add the lanes up.
//   block (32 * WARPS), grid (ceil(m / (WARPS * ROWS_PER_WARP)))
// Shuffle reduction: Luitjens, "Faster Parallel Reductions on Kepler" (NVIDIA, 2014).
#include "common/real.cuh"
#include "common/reduction.cuh"
#include "problem.cuh"
#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROWS_PER_WARP
#define ROWS_PER_WARP 1
#endif
#ifndef UNROLL
#define UNROLL 4   // steps of the walk whose loads are in flight together
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER) {
  constexpr unsigned STEPS = UNROLL;   // nvcc expands no macro in a pragma
  const unsigned lane = threadIdx.x % 32;
  const unsigned row0 = (blockIdx.x * WARPS + threadIdx.x / 32) * ROWS_PER_WARP;
  Sum sum[ROWS_PER_WARP] = {};
  const REAL* a[ROWS_PER_WARP];
#pragma unroll
  for (unsigned r = 0; r < ROWS_PER_WARP; ++r) {
    a[r] = row_of(A, row0 + r < M ? row0 + r : M - 1);   // past the end: the last row again, and no write
  }
#pragma unroll STEPS
  for (unsigned j = lane; j < N; j += 32) {
    const REAL factor = x[j];
#pragma unroll
    for (unsigned r = 0; r < ROWS_PER_WARP; ++r) sum[r] += a[r][j] * factor;
  }
#pragma unroll
  for (unsigned r = 0; r < ROWS_PER_WARP; ++r) {
    const Sum total = warp_sum(sum[r]);
    if (lane == 0 && row0 + r < M) write_y(y, row0 + r, alpha, total, beta);
  }
}
