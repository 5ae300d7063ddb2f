// Y = act(X G^T) * (X U^T) in bfloat16 or float16 for at most 64 rows of X, sums in float32 (problem.cuh has the layouts).
// For the tensor cores of compute capability 9.0 (PTX for sm_90a).
//
// gemm's `streamed_half_sm90` with A = X and a transposed B, of which a block has the same columns of G and of U:
// gemm/streamed_half_sm90.cu tells how it works. Who adds up the sums of both applies the activation and multiplies.
//   tile  m x TILE_N of Y;  block (160);  grid (column tiles * SPLIT_K)
// Shazeer, "GLU Variants Improve Transformer" (2020).
#define PAIRED 1
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "stream/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(SPLIT_K, 1, 1)
linear_gated(const Half* __restrict__, const Half* __restrict__, Stored* Y, const __grid_constant__ TensorMap map_x,
             const __grid_constant__ TensorMap map_w) {
  stream_product([=](unsigned) { return Epilogue{Y}; }, map_x, map_w);
}
