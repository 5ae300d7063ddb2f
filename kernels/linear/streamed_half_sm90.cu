// Y = act(X W^T + b) in bfloat16 or float16 for at most 64 rows of X, sums in float32.  X: (m, k), W: (n, k), b: (n),
// Y: (m, n), row-major (problem.cuh). For the tensor cores of compute capability 9.0 (PTX for sm_90a).
//
// gemm's `streamed_half_sm90` with A = X and a transposed B = W: gemm/streamed_half_sm90.cu tells how it works. Only what
// becomes of a finished sum differs: bias and activation are applied to it (half_epilogue.cuh).
//   tile  m x TILE_N of Y;  block (160);  grid (column tiles * SPLIT_K)
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "stream/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(SPLIT_K, 1, 1)
linear(const Half* __restrict__, const Half* __restrict__, const Half* __restrict__ b, Stored* Y,
       const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w) {
  stream_product([=](unsigned) { return Epilogue{b, Y}; }, map_x, map_w);
}
