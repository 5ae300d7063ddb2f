// Y = act(X G^T) * (X U^T) in bfloat16 or float16 on tensor cores, sums in float32 (problem.cuh has the layouts).
//
// gemm's `tensor_half` with A = X and a transposed B, of which a tile has eight rows of G and eight of U in turn
// (hmma/operand.cuh): a thread ends with the sums of both for the same elements of Y, applies the activation to one and
// multiplies. gemm/tensor_half.cu tells the rest.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N) of Y, a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K), or BLOCKS: one axis
// Shazeer, "GLU Variants Improve Transformer" (2020).
#define PAIRED 1
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "hmma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
linear_gated(const Half* __restrict__ X, const Half* __restrict__ W, Stored* __restrict__ Y SIZE_PARAMETER
             WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) float shared[];
  compute_block(X, W, [=](unsigned) { return Epilogue{Y}; }, shared, workspace);
}
