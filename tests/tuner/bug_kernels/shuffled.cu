// row_sum, by shuffles and dynamic shared memory.
#include "row_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const REAL* __restrict__ x, REAL* __restrict__ y) {
  extern __shared__ REAL warp_sums[];
  REAL sum = part_of_row(x, SHAPE_N);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < THREADS / 32 ? warp_sums[threadIdx.x] : REAL(0);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
