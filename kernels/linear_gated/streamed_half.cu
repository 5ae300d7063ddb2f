// Y = act(X G^T) * (X U^T) in bfloat16 or float16 for at most 64 rows of X, sums in float32 (problem.cuh has the layouts).
// From compute capability 8.0 on.
//
// gemm's `streamed_half` with A = X and a B of which a block has the same rows of G and of U: gemm/streamed_half.cu tells how
// it works. Who adds up the sums of both applies the activation and multiplies.
//   tile  m x (16 * ROWS) of Y;  block (32 * WARPS);  grid (column tiles)
// Shazeer, "GLU Variants Improve Transformer" (2020).
#define PAIRED 1
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "stream/direct.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
linear_gated(const Half* __restrict__ X, const Half* __restrict__ W, Stored* Y) {
  stream_direct([=](unsigned) { return Epilogue{Y}; }, X, W);
}
