// Y = act(conv(X, W) + b) in float32 on the tensor cores of compute capability 9.0, where a patch is a pixel and channels
// are contiguous: the product X W^T of matrices as they are stored.
//
// gemm's `tensor3xtf32_sm90` (PRODUCTS == 3) or `tensor1xtf32_sm90` (1) with A = X and a transposed B = W:
// gemm/tensor_sm90.cu tells how it works. Only what becomes of a finished sum differs: bias and activation are applied
// to it in its register (epilogue.cuh), once, by the block that has it whole.
//   tile  TILE_S x TILE_R of Y or the other way round;  block (THREADS): one axis;  grid (BLOCKS or less): one axis
#include "problem.cuh"

#include "epilogue.cuh"
#include "wgmma/kernel.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       WORKSPACE_PARAMETER) {
  compute_block(X, W, Epilogue{b, Y}, workspace);
}
