// The problem: y[i] = sum over k from row_start[i] to row_start[i + 1] of values[k] * x[columns[k]], a matrix in CSR
// times a vector.  row_start: (m + 1), columns, values: (nnz), x: (n), y: (m).
#pragma once
#include "common/real.cuh"
#ifndef SHAPE_M
#define SHAPE_M 1048576      // rows
#define SHAPE_N 1048576      // columns
#define SHAPE_NNZ 16777216   // elements that are stored
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

// The sum over the THREADS neighbouring threads that share a row, in the first of them. The whole warp must call it.
template <unsigned THREADS>
__device__ __forceinline__ REAL sum_of_lanes(REAL sum) {
#pragma unroll
  for (unsigned distance = THREADS / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, distance, THREADS);
  }
  return sum;
}
