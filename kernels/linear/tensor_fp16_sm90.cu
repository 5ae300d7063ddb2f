// Y = act(X W^T + b) in float32 on the FP16 tensor cores of compute capability 9.0.  X: (m, k), W: (n, k), b: (n), Y: (m,
// n), all row-major (problem.cuh).
//
// gemm's `tensor3xfp16_sm90` with A = X and a transposed B = W: gemm/tensor_fp16_sm90.cu tells how its two launches
// work. Only what becomes of a finished sum differs: bias and activation are applied to it in its register (epilogue.cuh).
//   tile  TILE_M x TILE_N of Y;  block (384): one axis;  grid (BLOCKS or less): one axis
#include "problem.cuh"

#ifndef M_AT_LAUNCH
#define STREAMS_OUTPUT (1ull * M * N >= 1u << 24)   // where the L2 cache does not hold Y
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
  const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y \
      SIZE_PARAMETER, unsigned char* __restrict__ workspace KEPT_PARAMETER

extern "C" __global__ void __launch_bounds__(SURVEY_THREADS) __cluster_dims__(SURVEY_CLUSTER, 1, 1)
linear_survey(PARAMETERS) {
  survey(X, W, MEMORY);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) linear(PARAMETERS) {
  multiply_packed(Epilogue{b, Y}, X, W, MEMORY);
}

#if PACKED_B
extern "C" __global__ void __launch_bounds__(SURVEY_THREADS) __cluster_dims__(KEEP_CLUSTER, 1, 1)
linear_keep_survey(PARAMETERS) {
  survey_kept(W, MEMORY);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) linear_keep_pack(PARAMETERS) { pack_kept(W, MEMORY); }
#endif
