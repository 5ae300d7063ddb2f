// C = alpha op(A) op(B) + beta C in float32 on tensor cores, row-major; op transposes where TRANS_A or TRANS_B is 1
// (problem.cuh has the layouts). With PRODUCTS 3 as exact as FP32 arithmetic, with PRODUCTS 1 the inputs are rounded to
// TF32.
//
// Each operand is split in two TF32 parts and three products are added up, the small ones first, or these two in BF16
// (mma/split_tf32.cuh says how exact that is). The tensor core cuts off what its sums cannot hold, so every PROMOTE_K terms
// they are added to sums in FP32 registers; PRODUCTS 1 does without. Steps of TILE_K along k travel by asynchronous
// copies through a ring of STAGES buffers in shared memory, in the order of the matrix; a warp reads its share of 16
// terms in 16-byte pieces without bank conflicts, because which terms and which x a lane takes is free
// (mma/operand.cuh), and splits it in registers.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N), a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * SLICES * 32): one axis; SLICES is 1, but in tensor_sliced.cu
//   grid  (row tiles * column tiles * SPLIT_K, matrices of the batch), in groups of GROUP_M row tiles. SPLIT_K blocks
//         share a tile: each walks a part of k, then they add up their tiles, through the shared memory of clusters
//         (BY_CLUSTER) and a workspace, in a fixed order (common/split_tile.cuh).
// A tile at the edge is moved back inside where the matrix is larger than the tile, and writes only what its neighbour
// does not; elsewhere, what lies outside is copied as zero. Rows that do not divide into 16 bytes come in smaller
// copies.
//
// The smallest numbers are as exact as others. A block whose sums show that it has met with infinities, NaN, or numbers
// or sums beyond some 2^102 computes them once more, so that they are what FP32 arithmetic gives
// (common/second_pass.cuh).
// Ootomo and Yokota (2022), see mma/split_tf32.cuh; NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for the
// tiles.
#include "epilogue.cuh"
#include "mma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C
     SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) REAL shared[];
  compute_block(A, B, Epilogue{alpha, beta, C}, shared, workspace);
}
