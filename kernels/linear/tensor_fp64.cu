// Y = act(X W^T + b) in float64 on tensor cores.  X: (m, k), W: (n, k), b: (n), Y: (m, n), row-major (problem.cuh).
//
// gemm's `tensor_fp64` with A = X and a transposed B = W: gemm/tensor_fp64.cu tells how it works. Only what becomes of a
// finished sum differs: bias and activation are applied to it in its register (epilogue.cuh, activation.cuh), once, by
// the block that has it whole.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N) of Y, a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K), or BLOCKS: one axis
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for fused epilogues.
#ifndef REAL
#define REAL double
#define REAL_BYTES 8
#endif
#include "problem.cuh"

#include "dmma/product.cuh"
#include "epilogue.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
linear(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) REAL shared[];
  compute_block(X, W, [=](unsigned) { return Epilogue{b, Y}; }, shared, workspace);
}
