// Y = act(X W^T + b) in bfloat16 or float16 on the tensor cores of compute capability 9.0 (PTX for sm_90a), sums in
// float32.  X: (m, k), W: (n, k), b: (n), Y: (m, n), row-major (problem.cuh).
//
// gemm's `tensor_half_turned_sm90` with A = X and a transposed B = W: gemm/tensor_half_turned_sm90.cu tells how it works. Only
// what becomes of a finished sum differs: bias and activation are applied to it in its register (half_epilogue.cuh).
//   tile  TILE_M x TILE_N of Y;  block (256 to 512);  grid (BLOCKS or less)
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "turned/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1)
linear(const Half* __restrict__, const Half* __restrict__, const Half* __restrict__ b, Stored* Y SIZE_PARAMETER
       WORKSPACE_PARAMETER, const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w,
       const __grid_constant__ TensorMap map_y) {
  multiply_turned([=](unsigned) { return Epilogue{b, Y}; }, map_x, map_w, map_y, workspace);
}
