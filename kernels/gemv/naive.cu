// y = alpha A x + beta y.  A: (m, n) row-major, x: (n), y: (m).
//
// A thread a row. Neighbouring threads read addresses a whole row apart, so each load of a warp touches 32 lines: the
// slow start that the other variants are measured against, and fine only where n is small.
//   block (BLOCK), grid (ceil(m / BLOCK))
#include "real.cuh"
#include "problem.cuh"
#ifndef BLOCK
#define BLOCK 128
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, REAL beta, REAL* __restrict__ y) {
  const unsigned row = blockIdx.x * BLOCK + threadIdx.x;
  if (row >= M) return;
  const REAL* a = row_of(A, row);
  REAL sum = 0;
  for (unsigned j = 0; j < N; ++j) sum += a[j] * x[j];
  write_y(y, row, alpha, sum, beta);
}
