// Y = act(X W^T + b) in bfloat16 or float16 on tensor cores, sums in float32.  X: (m, k), W: (n, k), b: (n), Y: (m, n),
// row-major (problem.cuh).
//
// gemm's `tensor_half` with A = X and a transposed B = W: gemm/tensor_half.cu tells how it works. Only what becomes of a
// finished sum differs: bias and activation are applied to it in its register (half_epilogue.cuh), once, by the block
// that has it whole.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N) of Y, a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K), or BLOCKS: one axis
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for fused epilogues.
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "hmma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
linear(const Half* __restrict__ X, const Half* __restrict__ W, const Half* __restrict__ b, Stored* __restrict__ Y
       SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) float shared[];
  compute_block(X, W, [=](unsigned) { return Epilogue{b, Y}; }, shared, workspace);
}
