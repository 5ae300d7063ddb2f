// The weights (n, k) that W and S of linear_quantized stand for, as numbers of 16 bits: those that a library multiplies with
// instead. Threads step over them; any grid and block of one axis.
#include "../../kernels/linear_quantized/problem.cuh"

extern "C" __global__ void widen(const Weight* __restrict__ W, const REAL* __restrict__ S, REAL* __restrict__ wide) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < size_t(N) * K; i += step) {
    const Grid grid(S, static_cast<unsigned>(i / K), static_cast<unsigned>(i % K) / GROUP);
    const int whole = BITS == 8 ? W[i] : W[i / 2] >> i % 2 * 4 & 15;
    wide[i] = REAL((whole - grid.zero) * grid.scale);
  }
}
