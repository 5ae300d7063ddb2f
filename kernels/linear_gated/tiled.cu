// Y = act(X G^T) * (X U^T) on CUDA cores (problem.cuh has the layouts).
//
// Square tiles in shared memory, a thread an element of Y: it has two sums, and what it reads of X serves both.
//   block (TILE_WIDTH, TILE_WIDTH), one axis; grid (tiles of Y), one axis
#include "problem.cuh"

#include "common/real.cuh"
#include "gate.cuh"
#ifndef TILE_WIDTH
#define TILE_WIDTH 16
#endif

extern "C" __global__ void __launch_bounds__(TILE_WIDTH * TILE_WIDTH)
linear_gated(const REAL* __restrict__ X, const REAL* __restrict__ W, REAL* __restrict__ Y SIZE_PARAMETER) {
  // The odd pitch keeps the columns that are written along in different banks.
  __shared__ REAL tile_x[TILE_WIDTH][TILE_WIDTH + 1];      // [row][p]
  __shared__ REAL tile_w[2][TILE_WIDTH][TILE_WIDTH + 1];   // [matrix][column][p]
  constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_WIDTH});
  const unsigned x = threadIdx.x, y = threadIdx.y;
  const unsigned row = blockIdx.x / TILES_N * TILE_WIDTH + y, column0 = blockIdx.x % TILES_N * TILE_WIDTH;
  Sum gate = 0, up = 0;
  for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH) {
    const bool is_inside = p0 + x < K;
    tile_x[y][x] = is_inside && row < M ? X[static_cast<size_t>(row) * K + p0 + x] : REAL(0);
#pragma unroll
    for (unsigned matrix = 0; matrix < 2; ++matrix) {
      const size_t line = static_cast<size_t>(matrix) * N + column0 + y;
      tile_w[matrix][y][x] = is_inside && column0 + y < N ? W[line * K + p0 + x] : REAL(0);
    }
    __syncthreads();
#pragma unroll
    for (unsigned p = 0; p < TILE_WIDTH; ++p) {
      const Sum factor = Sum(tile_x[y][p]);
      gate += factor * Sum(tile_w[0][x][p]);
      up += factor * Sum(tile_w[1][x][p]);
    }
    __syncthreads();
  }
  if (row < M && column0 + x < N) Y[static_cast<size_t>(row) * N + column0 + x] = REAL(gated(gate, up));
}
