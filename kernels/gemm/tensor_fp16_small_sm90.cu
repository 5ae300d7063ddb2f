// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// FP32 accuracy on the FP16 tensor cores of compute capability 9.0 (PTX for sm_90a) where products are small, in one launch. A
// warpgroup has all numbers of a step in registers at once, so that their scales, powers of two for each warp's 16 rows of
// A and 16 columns of B, are known before anything is multiplied. Each number becomes two FP16 parts, the second times 2^11,
// so that what FP16 cannot hold begins 2^-28 below the largest. Parts of A stay in registers, those of B go to shared
// memory, and wgmma adds up high by high parts, and by themselves high by low and low by high ones.
// A warp's sums whose numbers include infinities, NaN, or some that two parts do not hold are made by FMAs instead.
//   tile  64 x 64 of C
//   block (128 * SLICES): warpgroups that share the terms of the tile, TILE_K each at a time
//   grid  (tiles * SPLIT_K, matrices): SPLIT_K blocks, a cluster, share the terms of a tile too (small/reduce.cuh)
// Launches begin while the one before ends, on multiprocessors that have room for RESIDENT blocks and no more.
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for the parts and the scale of the second.
#include "epilogue.cuh"
#include "small/product.cuh"

struct Output {
  REAL alpha, beta;
  REAL* C;
  // The epilogue for sums from that element of a matrix on.
  __device__ __forceinline__ Epilogue from(unsigned matrix, unsigned row, unsigned column) const {
    return {alpha, beta, C + matrix * STRIDE_C + static_cast<size_t>(row) * LDC + column};
  }
};

extern "C" __global__ void
#if SPLIT_K > 1
__cluster_dims__(SPLIT_K, 1, 1)
#endif
__launch_bounds__(THREADS, RESIDENT)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C) {
  extern __shared__ __align__(1024) unsigned char shared[];
  compute_block(A, B, Output{alpha, beta, C}, shared);
}
