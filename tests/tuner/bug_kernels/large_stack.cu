// row_sum, by way of an array on the stack that is too large.
#include "row_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const REAL* __restrict__ x, REAL* __restrict__ y) {
  __shared__ REAL parts[THREADS];
  REAL copy[1 << 18];
  for (int i = 0; i < (1 << 18); ++i) copy[i] = x[(blockIdx.x + i) % SHAPE_N];
  parts[threadIdx.x] = part_of_row(x, SHAPE_N) + 0 * copy[blockIdx.x * 7919];
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = combine(parts);
}
