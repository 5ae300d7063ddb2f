// Y = act(X W^T + b), row-major, in float32 on tensor cores, where tiles are few: gemm's `tensor3xtf32_sliced` with A = X
// and a transposed B = W (gemm/tensor_sliced.cu). Bias and activation are applied to a finished sum, as in tensor_mma.cu.
//   tile  (WARPS_M * WARP_M) x (WARPS_N * WARP_N) of Y, a warp WARP_M x WARP_N of it and of the terms a part
//   block (WARPS_M * WARPS_N * SLICES * 32): one axis
//   grid  (row tiles * column tiles * SPLIT_K): one axis
#include "mma/sliced.cuh"
#include "tensor_mma.cu"
