// y[i] = sum over k from row_start[i] to row_start[i + 1] of values[k] * x[columns[k]]: a matrix in CSR times a vector.
// row_start: (m + 1), columns, values: (nnz), x: (n), y: (m).
//
// LANES threads of a warp share a row: with 1 each has rows of its own, which suits short rows, with 32 a warp reads a
// long row in whole lines. A thread has ITEMS products under way at a time, since each waits for a column's number
// and then for x.
//   block (BLOCK); grid (m * LANES / BLOCK), rounded up
// Bell and Garland, "Implementing Sparse Matrix-Vector Multiplication on Throughput-Oriented Processors" (SC 2009).
#include "problem.cuh"
#ifndef LANES
#define LANES 8              // threads of a row
#endif
#ifndef ITEMS
#define ITEMS 2              // products of a thread that are under way at a time
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
spmv(const int* __restrict__ row_start, const int* __restrict__ columns, const REAL* __restrict__ values,
     const REAL* __restrict__ x, REAL* __restrict__ y) {
  const unsigned row = (blockIdx.x * BLOCK + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
  REAL sums[ITEMS] = {};
  if (row < SHAPE_M) {
    const unsigned end = static_cast<unsigned>(row_start[row + 1]);
    unsigned k = static_cast<unsigned>(row_start[row]) + lane;
    for (; k + (ITEMS - 1) * LANES < end; k += ITEMS * LANES) {
      REAL factors[ITEMS];
#pragma unroll
      for (unsigned item = 0; item < ITEMS; ++item) factors[item] = __ldg(x + columns[k + item * LANES]);
#pragma unroll
      for (unsigned item = 0; item < ITEMS; ++item) sums[item] += values[k + item * LANES] * factors[item];
    }
    for (; k < end; k += LANES) sums[0] += values[k] * __ldg(x + columns[k]);
  }
  REAL sum = sums[0];
#pragma unroll
  for (unsigned item = 1; item < ITEMS; ++item) sum += sums[item];
  sum = sum_of_lanes<LANES>(sum);
  if (row < SHAPE_M && lane == 0) y[row] = sum;
}
