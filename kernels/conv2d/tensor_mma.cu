// Y = act(conv(X, W) + b) in float32 on tensor cores; problem.cuh has the layouts.
//
// gemm's `tensor3xtf32` (PRODUCTS 3) or `tensor1xtf32` (1) on patches and filters, neither of which is ever stored:
// gemm/tensor_mma.cu tells how it works and what becomes of infinities, NaN, and very large or small numbers. Copies to
// shared memory come from the images directly, 16 bytes where four channels are neighbours (conv/mma_operands.cuh). Bias
// and activation are applied to a finished sum in its register, once, by the block that has it whole.
//   tile  (WARPS_M * WARP_M) output pixels x (WARPS_N * WARP_N) filters, a warp WARP_M x WARP_N of it
//   block (WARPS_M * WARPS_N * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K): one axis
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), for the split; Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning" (2014), for
// products of patches that are not stored.
#include "problem.cuh"

#include "conv/mma_operands.cuh"
#include "epilogue.cuh"
#include "mma/product.cuh"

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
conv2d(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER WORKSPACE_PARAMETER) {
  extern __shared__ __align__(128) REAL shared[];
  compute_block(X, W, Epilogue{b, Y}, shared, workspace);
}
