// y[j, i] = x[i, j].  x: (m, n), y: (n, m), row-major.
//
// Every thread moves one element, so that either the loads or the stores of a warp are a row apart. What tiles are for is
// the difference to tiled.cu.
//   block (BLOCK_X, BLOCK_Y); grid (n / BLOCK_X, m / BLOCK_Y), rounded up
#include "problem.cuh"
#ifndef BLOCK_X
#define BLOCK_X 32   // threads along a row of x
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8    // threads along a column of x
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
transpose(const REAL* __restrict__ x, REAL* __restrict__ y) {
  const unsigned i = blockIdx.y * BLOCK_Y + threadIdx.y, j = blockIdx.x * BLOCK_X + threadIdx.x;
  if (i < M && j < N) y[static_cast<size_t>(j) * M + i] = x[static_cast<size_t>(i) * N + j];
}
