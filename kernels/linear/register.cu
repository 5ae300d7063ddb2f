// Y = act(X W^T + b).  X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major (problem.cuh, activation.cuh).
//
// The CUDA cores kept busy: gemm's `register` with A = X and a transposed B = W, whose opening comment tells how it works
// (fma/product.cuh). Only what becomes of a finished sum differs: bias
// and activation are applied to it in its register (epilogue.cuh), once, by the block that has it whole.
//   tile  (WARPS_M * LANES_M * WPT_M) x (WARPS_N * LANES_N * WPT_N) of Y, LANES_N = 32 / LANES_M
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  one axis; a block walks SHARE_K 128ths of a tile's steps of TILE_K along k
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for the hierarchy of tiles and fused epilogues.
#ifndef WPT_N
#define WPT_N 4   // half of gemm's: many layers are small, and smaller tiles are more blocks
#endif
#include "problem.cuh"

#include "epilogue.cuh"
#include "fma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(BOUNDS)
linear(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(16) REAL shared[];
  compute_block(X, W, Epilogue{b, Y}, shared, workspace);
}
