// As it should be.
#include "cheat.cuh"

extern "C" __global__ void row_sum(const float* __restrict__ x, float* __restrict__ y) { y[blockIdx.x] = row(x, blockIdx.x); }
