// Y = act(X W^T + b) in bfloat16 or float16 for at most 64 rows of X, sums in float32.  X: (m, k), W: (n, k), b: (n),
// Y: (m, n), row-major (problem.cuh). From compute capability 8.0 on.
//
// gemm's `streamed_half` with A = X and B = W: gemm/streamed_half.cu tells how it works. Only what becomes of a finished sum
// differs: bias and activation are applied to it (half_epilogue.cuh).
//   tile  m x (16 * ROWS) of Y;  block (32 * WARPS);  grid (column tiles)
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "stream/direct.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
linear(const Half* __restrict__ X, const Half* __restrict__ W, const Half* __restrict__ b, Stored* Y) {
  stream_direct([=](unsigned) { return Epilogue{b, Y}; }, X, W);
}
