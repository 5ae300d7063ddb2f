// A sum of x for each block of block_size elements; with BUG the last block leaves its out.
#ifndef block_size
#define block_size 64
#endif
#ifndef BUG
#define BUG 0
#endif

extern "C" __global__ void __launch_bounds__(block_size)
partial_sums(const float* __restrict__ x, int n, float* __restrict__ sums) {
  if (threadIdx.x != 0 || (BUG && blockIdx.x == gridDim.x - 1)) return;
  float sum = 0;
  for (int i = blockIdx.x * block_size; i < n && i < (blockIdx.x + 1) * block_size; ++i) sum += x[i];
  sums[blockIdx.x] = sum;
}
