// row_sum, waiting for a flag that nobody sets.
#include "row_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const REAL* __restrict__ x, REAL* __restrict__ y) {
  __shared__ REAL parts[THREADS];
  __shared__ volatile int is_set;
  is_set = 0;
  parts[threadIdx.x] = part_of_row(x, SHAPE_N);
  while (!is_set) {
  }
  if (threadIdx.x == 0) y[blockIdx.x] = combine(parts);
}
