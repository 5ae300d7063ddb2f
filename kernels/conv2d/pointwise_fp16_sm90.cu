// Y = act(conv(X, W) + b) in float32 on the FP16 tensor cores of compute capability 9.0, where a patch is a pixel and
// channels are contiguous: the product X W^T of matrices as they are stored.
//
// gemm's `tensor3xfp16_sm90` with A = X and a transposed B = W: gemm/tensor_fp16_sm90.cu tells how its two launches
// work. Only what becomes of a finished sum differs: bias and activation are applied to it in its register (epilogue.cuh).
//   tile  TILE_M x TILE_N of Y;  block (384): one axis;  grid (BLOCKS or less): one axis
#include "problem.cuh"

#include "epilogue.cuh"
#include "parts/pack.cuh"
#include "parts/product.cuh"
#include "parts/survey.cuh"

#define PARAMETERS \
  const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y, \
      unsigned char* __restrict__ workspace

extern "C" __global__ void __launch_bounds__(SURVEY_THREADS) __cluster_dims__(SURVEY_CLUSTER, 1, 1)
conv2d_survey(PARAMETERS) {
  survey(X, W, Memory{workspace, nullptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) conv2d(PARAMETERS) {
  multiply_packed(Epilogue{b, Y}, X, W, Memory{workspace, nullptr});
}
