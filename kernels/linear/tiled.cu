// Y = act(X W^T + b).  X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major (problem.cuh, activation.cuh).
//
// A block computes a square tile of Y, a thread an element. The block walks along k in steps of TILE_WIDTH: each thread
// brings one element of X and one of W to shared memory, then every element there is used TILE_WIDTH times. Neighbours
// in x load neighbours along k from both: a warp loads whole runs; W's tile is turned on the way. Bias and activation
// cost no trip to memory: they are applied to the finished sum in its register. Had it started with b, every product would
// be rounded to b's last digit.
//   block (TILE_WIDTH columns, TILE_WIDTH rows)
//   grid  (column tiles * row tiles): one axis, because y and z end at 65535
// CUDA C++ Programming Guide, "Shared Memory"; the first step of three, `wpt_strided` and `wpt` follow.
#include "common/activation.cuh"
#include "common/integers.cuh"
#include "problem.cuh"
#ifndef TILE_WIDTH
#define TILE_WIDTH 16
#endif

extern "C" __global__ void __launch_bounds__(TILE_WIDTH * TILE_WIDTH)
linear(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, Out* __restrict__ Y
       SIZE_PARAMETER) {
  // The odd pitch keeps the columns that W is written along in different banks.
  __shared__ REAL tile_x[TILE_WIDTH][TILE_WIDTH + 1];   // [row][p]
  __shared__ REAL tile_w[TILE_WIDTH][TILE_WIDTH + 1];   // [p][column]
  constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_WIDTH});
  const unsigned x = threadIdx.x, y = threadIdx.y;
  const unsigned row0 = blockIdx.x / TILES_N * TILE_WIDTH, column0 = blockIdx.x % TILES_N * TILE_WIDTH;
  const unsigned row = row0 + y, column = column0 + x;

  Sum sum = 0;
  for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH) {
    const unsigned p = p0 + x, row_w = column0 + y;
    tile_x[y][x] = row < M && p < K ? X[static_cast<size_t>(row) * K + p] : REAL(0);
    tile_w[x][y] = row_w < N && p < K ? W[static_cast<size_t>(row_w) * K + p] : REAL(0);
    __syncthreads();
#pragma unroll
    for (unsigned q = 0; q < TILE_WIDTH; ++q) sum += Sum(tile_x[y][q]) * Sum(tile_w[q][x]);
    __syncthreads();
  }
  if (row < M && column < N) Y[static_cast<size_t>(row) * N + column] = activate(sum + Sum(b[column]));
}
