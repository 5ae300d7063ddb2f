// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// FP32 accuracy on the tensor cores of compute capability 9.0 (PTX for sm_90a). Every number is split in two TF32
// parts, and three of the four products of parts are added up (PRODUCTS == 3; wgmma/split_tf32.cuh has the arithmetic
// and its error); sums of STEP_K products are added to FP32 registers, because the tensor core cuts off what it adds.
// PRODUCTS == 1 takes raw numbers as TF32, for callers who ask for no more.
//   tile  TILE_S x TILE_R, where TILE_R = 64 * BLOCKS_R * CONSUMERS. One operand, A with SHARED_A and else B, has
//         TILE_S lines in shared memory that the tensor cores read there; TILE_R lines of the other go through
//         registers.
//   block (128 * (CONSUMERS + 1 or 2)): CONSUMERS warpgroups that multiply; one that writes the low parts of the
//         operand in shared memory (PRODUCTS == 3); one that loads. They meet at barriers of a ring of STAGES buffers.
//   grid  (BLOCKS, or the number of tiles of the batch times SPLIT_K where that is less): a block takes work until none
//         is left, and loads the next tile's numbers while it writes a finished one.
// With SPLIT_K above 1 up to so many blocks share a tile, and all blocks have equally many steps
// (wgmma/scheduler.cuh): each leaves its sums in the workspace; the last to arrive adds them up, in a fixed order.
// Tiles go in groups of GROUP_M row tiles that share columns of B in the L2 cache.
// Tiles in whose sums infinities, NaN, or numbers or sums beyond some 2^102 show, or that have numbers below 2^-112 in
// shared memory, a block computes once more when it is through with all (common/second_pass.cuh, wgmma/marks.cuh).
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for the split; NVIDIA, "CUTLASS" 3, for warpgroups with roles of their own.
#include "epilogue.cuh"
#include "wgmma/kernel.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C
     WORKSPACE_PARAMETER) {
  compute_block(A, B, Epilogue{alpha, beta, C}, workspace);
}
