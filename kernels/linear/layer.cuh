// The layer around the product of fma/wpt.cuh: sums start with the bias and are activated on their way to Y.
#pragma once
#include "problem.cuh"

#include "common/activation.cuh"
#include "fma/wpt.cuh"

// The element of Y for one finished sum.
struct Activate {
  static constexpr bool READS_C = false;
  __device__ __forceinline__ REAL operator()(REAL sum, REAL) const { return activate(sum); }
};

// The block's tile of Y.
__device__ __forceinline__ void compute_tile(const REAL* X, const REAL* W, const REAL* b, REAL* Y) {
  const Origin origin = tile_origin(blockIdx.x);
  const Patch patch(threadIdx.x);
  REAL sum[WPT_M][WPT_N];
#pragma unroll
  for (unsigned j = 0; j < WPT_N; ++j) {
    const unsigned column = origin.n + ShareN::at(patch.n, j);
    const REAL bias = N % TILE_N == 0 || column < N ? b[column] : REAL(0);
#pragma unroll
    for (unsigned i = 0; i < WPT_M; ++i) sum[i][j] = bias;
  }
  add_products(sum, X, W, origin, patch);
  write_tile(sum, Y, origin, patch, Activate{});
}
