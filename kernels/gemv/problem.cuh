// The problem: y = alpha op(A) x + beta y, op(A) of m rows and n columns, baked in as constants.
#pragma once
#include "common/at_launch.cuh"
#include "common/real.cuh"

#ifndef SHAPE_M
#define SHAPE_M 1024   // rows of op(A), length of y
#define SHAPE_N 1024   // columns of op(A), length of x
#endif
#ifndef TRANS_A
#define TRANS_A 0      // 0: A is stored (m, n); 1: as (n, m)
#endif
#ifndef BETA_ZERO
#define BETA_ZERO 1    // 1: y is not read, whatever it holds
#endif

// Unsigned: an axis may be 2^31 - 1, and the last stride over it then ends beyond a signed int.
#ifdef M_AT_LAUNCH
#define M SHAPE_M
#else
[[maybe_unused]] constexpr unsigned M = SHAPE_M;   // a grid of m blocks need not look
#endif
constexpr unsigned N = SHAPE_N;

// Where row `row` of A starts, A stored (m, n).
__device__ __forceinline__ const REAL* row_of(const REAL* A, unsigned row) { return A + static_cast<size_t>(row) * N; }

// One finished inner product goes to y.
__device__ __forceinline__ void write_y(REAL* y, unsigned row, Sum alpha, Sum product, Sum beta) {
  y[row] = BETA_ZERO ? alpha * product : alpha * product + beta * y[row];
}
