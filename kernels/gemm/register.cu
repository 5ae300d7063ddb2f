// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// The CUDA cores kept busy: a block computes a TILE_M x TILE_N tile of C, a warp a rectangle of it, a thread WPT_M x
// WPT_N in registers. Steps of TILE_K along k travel by asynchronous copies through a ring of STAGES buffers in shared
// memory, with k outermost, so that a thread's share of one k is a few 16-byte reads; those run one k ahead of the
// products, across steps too. Beside FMAs the inner loop holds those reads and, once a step, the copies, whose addresses
// are a register plus constants, because the shape is a constant.
//   tile  (WARPS_M * LANES_M * WPT_M) x (WARPS_N * LANES_N * WPT_N), LANES_N = 32 / LANES_M
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  y: matrices of the batch; x: tiles in groups of GROUP_M row tiles that share columns of B in the L2 cache. A
//         block walks SHARE_K 128ths of a tile's steps. Where those divide a tile, 128 / SHARE_K blocks share it;
//         otherwise the steps of all tiles are one long walk, in equal pieces that cross from tile to tile, so that any
//         number of blocks has equal work. Parts of a tile are added up through the shared memory of clusters
//         (BY_CLUSTER) and a workspace, in a fixed order (common/split_tile.cuh).
// An operand that is contiguous along k in memory (A, or B with TRANS_B) is turned on the way, by element-wide copies or
// through registers (HELD); the other moves in the widest copies that its rows divide into. A tile at the edge is moved
// back inside where the matrix is larger than the tile, and writes only what its neighbour does not; elsewhere, what lies
// outside is copied as zero.
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), for the hierarchy of tiles and the two-level pipeline;
// Osama et al., "Stream-K" (PPoPP 2023), for pieces that cross tiles.
#include "epilogue.cuh"
#include "fma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(BOUNDS)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C
     SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(16) REAL shared[];
  const unsigned matrix = matrix_of_block();
  const Epilogue epilogue{alpha, beta, C + matrix * STRIDE_C};
  compute_block(A + matrix * STRIDE_A, B + matrix * STRIDE_B, epilogue, shared, workspace);
}
