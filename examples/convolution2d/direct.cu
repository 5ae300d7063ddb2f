// y[i, j] = sum over a, b of f[a, b] * x[i + a, j + b].  y: (h, w), f: (r, s), x: (h + r - 1, w + s - 1), row-major.
//
// A thread sums ROWS x COLUMNS elements of y and reads x from memory; what its neighbours read too, the caches hold. An
// element of x once read is of use to all rows of y that it reaches.
//   block (BLOCK_X, BLOCK_Y); grid (w / (BLOCK_X * COLUMNS), h / (BLOCK_Y * ROWS)), rounded up
#include "problem.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
convolution2d(const REAL* __restrict__ x, const REAL* __restrict__ f, REAL* __restrict__ y) {
  const unsigned first_row = blockIdx.y * TILE_ROWS + threadIdx.y * ROWS;
  const unsigned first_column = blockIdx.x * TILE_COLUMNS + threadIdx.x;
  REAL sums[COLUMNS][ROWS] = {};
  for (unsigned b = 0; b < FILTER_COLUMNS; ++b) {
#pragma unroll ROWS_TOGETHER
    for (unsigned down = 0; down < ROWS_READ; ++down) {
      const REAL* row = x + static_cast<size_t>(at_most(first_row + down, X_ROWS - 1)) * X_COLUMNS + b;
#pragma unroll
      for (unsigned column = 0; column < COLUMNS; ++column) {
        add_row(sums[column], row[at_most(first_column + column * BLOCK_X, W - 1)], down, f + b);
      }
    }
  }
  store(y, sums, first_row, first_column);
}
