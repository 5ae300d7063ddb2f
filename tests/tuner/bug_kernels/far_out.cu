// row_sum, and an element is written 256 GiB behind y.
#include "row_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const REAL* __restrict__ x, REAL* __restrict__ y) {
  __shared__ REAL parts[THREADS];
  parts[threadIdx.x] = part_of_row(x, SHAPE_N);
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = combine(parts);
  if (threadIdx.x == 0 && blockIdx.x == 0) y[static_cast<size_t>(1) << 36] = 1;
}
