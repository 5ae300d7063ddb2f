// The problem: y[i, j] = sum over a, b of f[a, b] * x[i + a, j + b].  y: (h, w), f: (r, s), x: (h + r - 1, w + s - 1),
// all row-major: x comes with its border, so that every y has all its terms.
#pragma once
#ifndef REAL
#define REAL float
#endif
#ifndef SHAPE_H
#define SHAPE_H 4096   // rows of y
#define SHAPE_W 4096   // columns of y
#define SHAPE_R 17     // rows of the filter
#define SHAPE_S 17     // columns of the filter
#endif
#ifndef BLOCK_X
#define BLOCK_X 32
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 4
#endif
#ifndef ROWS
#define ROWS 4         // rows of y that a thread sums, neighbours
#endif
#ifndef COLUMNS
#define COLUMNS 2      // columns of y that a thread sums, BLOCK_X apart: neighbouring threads read neighbours
#endif

constexpr unsigned H = SHAPE_H, W = SHAPE_W, FILTER_ROWS = SHAPE_R, FILTER_COLUMNS = SHAPE_S;
constexpr unsigned X_ROWS = H + FILTER_ROWS - 1, X_COLUMNS = W + FILTER_COLUMNS - 1;
constexpr unsigned TILE_ROWS = BLOCK_Y * ROWS, TILE_COLUMNS = BLOCK_X * COLUMNS;   // of y, one block's
constexpr unsigned ROWS_READ = ROWS + FILTER_ROWS - 1;                             // of x, by one thread

// All of them where that is not too much code: then each test below is decided by the compiler.
constexpr unsigned ROWS_TOGETHER = FILTER_ROWS * ROWS * COLUMNS <= 1024 ? ROWS_READ : 1;

// The last row or column that there is, for threads past the edge: they read what exists and write nothing.
__device__ __forceinline__ unsigned at_most(unsigned place, unsigned last) { return place < last ? place : last; }

// What the element x, `down` rows below a thread's first row, adds to its sums in one column. `f` is the filter's column.
__device__ __forceinline__ void add_row(REAL (&sums)[ROWS], REAL x, unsigned down, const REAL* f) {
#pragma unroll
  for (unsigned row = 0; row < ROWS; ++row) {
    const unsigned a = down - row;   // wraps around where the row begins farther down
    if (a < FILTER_ROWS) sums[row] += f[a * FILTER_COLUMNS] * x;
  }
}

// A thread's sums to y; its first is (first_row, first_column).
__device__ __forceinline__ void store(
    REAL* y, const REAL (&sums)[COLUMNS][ROWS], unsigned first_row, unsigned first_column) {
#pragma unroll
  for (unsigned column = 0; column < COLUMNS; ++column) {
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
      const unsigned i = first_row + row, j = first_column + column * BLOCK_X;
      if (i < H && j < W) y[static_cast<size_t>(i) * W + j] = sums[column][row];
    }
  }
}
