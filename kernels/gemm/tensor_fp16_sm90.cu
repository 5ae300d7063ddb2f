// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// FP32 accuracy on the FP16 tensor cores of compute capability 9.0 (PTX for sm_90a), in two launches that share a
// workspace:
//   gemm_survey  reads A and B: the scale of each row of A and column of B, a power of two; whether FP16 suffices; writes
//                every number, scaled, as two FP16 parts to where copies and tensor cores read them in order
//   gemm         multiplies: low by high, high by low, high by high parts; sums go to FP32 registers every PROMOTE_K
// Two FP16 parts hold 22 bits of a number that is not far below the largest of its line. Where a line spans so much that
// the bound on the error might not hold (parts/workspace.cuh), all numbers become three BF16 parts and six products, at
// half the speed, without the host's help. With infinities or NaN a second pass over first parts says which sums are which.
//   tile  TILE_M x TILE_N of C;  block (384): two warpgroups that multiply, one thread that loads;  grid (BLOCKS or less)
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for FP16 parts; Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence
// datatype for higher-precision computations" (2019), for three BF16 parts.
#include "problem.cuh"

#ifndef M_AT_LAUNCH
#define STREAMS_OUTPUT (1ull * M * N * BATCH >= 1u << 24)   // where the L2 cache does not hold C
#endif
#include "epilogue.cuh"
#include "parts/pack.cuh"
#include "parts/product.cuh"
#include "parts/survey.cuh"

#if PACKED_B
#define KEPT_PARAMETER , unsigned char* __restrict__ kept
#define MEMORY (Memory{workspace, kept})
#else
#define KEPT_PARAMETER
#define MEMORY (Memory{workspace, nullptr})
#endif
#define PARAMETERS \
  REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C \
      SIZE_PARAMETER, unsigned char* __restrict__ workspace KEPT_PARAMETER

extern "C" __global__ void __launch_bounds__(SURVEY_THREADS) __cluster_dims__(SURVEY_CLUSTER, 1, 1)
gemm_survey(PARAMETERS) {
  survey(A, B, MEMORY);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) gemm(PARAMETERS) {
  multiply_packed(Epilogue{alpha, beta, C}, A, B, MEMORY);
}

#if PACKED_B
extern "C" __global__ void __launch_bounds__(SURVEY_THREADS) __cluster_dims__(KEEP_CLUSTER, 1, 1)
gemm_keep_survey(PARAMETERS) {
  survey_kept(B, MEMORY);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) gemm_keep_pack(PARAMETERS) { pack_kept(B, MEMORY); }
#endif
