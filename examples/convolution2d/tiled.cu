// y[i, j] = sum over a, b of f[a, b] * x[i + a, j + b].  y: (h, w), f: (r, s), x: (h + r - 1, w + s - 1), row-major.
//
// A block brings the part of x that its tile of y needs, border included, and the filter into shared memory; a thread
// then sums ROWS x COLUMNS elements in registers, and an element of x once read is of use to all rows that it reaches.
// PADDING moves rows of the tile to other banks: warps narrower than 32 read several rows at once.
//   block (BLOCK_X, BLOCK_Y); grid (w / (BLOCK_X * COLUMNS), h / (BLOCK_Y * ROWS)), rounded up
//   shared memory, dynamic: the tile of x, then the filter
// Van Werkhoven, Maassen, Seinstra, Bal, "Optimizing Convolution Operations in CUDA with Adaptive Tiling" (A4MMC 2011).
#include "problem.cuh"
#ifndef PADDING
#define PADDING 0      // elements behind each row of the tile that nothing uses
#endif

constexpr unsigned TILE_X_ROWS = TILE_ROWS + FILTER_ROWS - 1, TILE_X_COLUMNS = TILE_COLUMNS + FILTER_COLUMNS - 1;
constexpr unsigned PITCH = TILE_X_COLUMNS + PADDING;

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
convolution2d(const REAL* __restrict__ x, const REAL* __restrict__ f, REAL* __restrict__ y) {
  extern __shared__ __align__(16) REAL tile[];
  REAL* filter = tile + TILE_X_ROWS * PITCH;
  const unsigned tile_row = blockIdx.y * TILE_ROWS, tile_column = blockIdx.x * TILE_COLUMNS;
  for (unsigned i = threadIdx.y; i < TILE_X_ROWS; i += BLOCK_Y) {
    const REAL* row = x + static_cast<size_t>(at_most(tile_row + i, X_ROWS - 1)) * X_COLUMNS;
    for (unsigned j = threadIdx.x; j < TILE_X_COLUMNS; j += BLOCK_X) {
      tile[i * PITCH + j] = row[at_most(tile_column + j, X_COLUMNS - 1)];
    }
  }
  for (unsigned i = threadIdx.y * BLOCK_X + threadIdx.x; i < FILTER_ROWS * FILTER_COLUMNS; i += BLOCK_X * BLOCK_Y) {
    filter[i] = f[i];
  }
  __syncthreads();

  const REAL* corner = tile + threadIdx.y * ROWS * PITCH + threadIdx.x;
  REAL sums[COLUMNS][ROWS] = {};
  for (unsigned b = 0; b < FILTER_COLUMNS; ++b) {
#pragma unroll ROWS_TOGETHER
    for (unsigned down = 0; down < ROWS_READ; ++down) {
#pragma unroll
      for (unsigned column = 0; column < COLUMNS; ++column) {
        add_row(sums[column], corner[down * PITCH + column * BLOCK_X + b], down, filter + b);
      }
    }
  }
  store(y, sums, tile_row + threadIdx.y * ROWS, tile_column + threadIdx.x);
}
