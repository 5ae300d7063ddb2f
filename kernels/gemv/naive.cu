// y = alpha op(A) x + beta y.  op(A): (m, n), x: (n), y: (m); A row-major, stored (m, n), or (n, m) where transposed.
//
// A thread a row of op(A). Neighbouring threads read addresses a whole row apart, so each load of a warp touches 32 lines:
// the slow start that the other variants are measured against, and fine only where n is small. Where A is transposed
// they read neighbours, and what is missing is loads in flight.
//   block (BLOCK), grid (ceil(m / BLOCK))
#include "common/real.cuh"
#include "problem.cuh"
#ifndef BLOCK
#define BLOCK 128
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER) {
  const unsigned row = blockIdx.x * BLOCK + threadIdx.x;
  if (row >= M) return;
  const REAL* a = TRANS_A ? A + row : row_of(A, row);
  Sum sum = 0;
  for (unsigned j = 0; j < N; ++j) sum += a[static_cast<size_t>(j) * (TRANS_A ? M : 1)] * x[j];
  write_y(y, row, alpha, sum, beta);
}
