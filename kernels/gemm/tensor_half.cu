// C = alpha op(A) op(B) + beta C in bfloat16 or float16 on tensor cores, sums in float32, row-major; op transposes where
// TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// Steps of TILE_K along k travel by asynchronous copies through a ring of STAGES buffers in shared memory, in the order
// of the matrix; ldmatrix turns what lies across k (hmma/operand.cuh). A warp multiplies 16 terms at a time and meanwhile
// reads the next, beside them (AHEAD) or in their place.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N), a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  one axis, tiles in groups of 8 row tiles, those of all matrices of a batch one after the other.
//         With BLOCKS 0 a block a tile, or SPLIT_K of them, each of which walks a part of k; else BLOCKS blocks, as many
//         as run at once, which have equal shares of all steps: whole tiles each, and of some tiles parts
//         (dmma/work.cuh). The copies of the next tile are then under way while a tile is finished. What blocks have of
//         one tile is added up through the shared memory of clusters (BY_CLUSTER) and a workspace, in a fixed order
//         (common/split_tile.cuh).
// A tile at the edge is moved back inside where the matrix is larger than the tile, and writes only what its neighbour
// does not; elsewhere, what lies outside is copied as zero. Rows that do not divide into 16 bytes come in smaller copies.
// Four lanes exchange their sums, so that each stores 16 bytes.
//
// The tensor core cuts off what its sums cannot hold, as it does for the library.
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for the tiles; Osama et al., "Stream-K: Work-Centric Parallel
// Decomposition for Dense Matrix-Matrix Multiplication on the GPU" (2023), for equal shares.
#include "hmma/product.cuh"

#include "half_epilogue.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(float alpha, const Half* __restrict__ A, const Half* __restrict__ B, float beta, Stored* __restrict__ C
     SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) float shared[];
  const auto epilogue_of = [=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; };
  compute_block(A, B, epilogue_of, shared, workspace);
}
