// Y = act(X G^T) * (X U^T) in bfloat16 or float16 on the tensor cores of compute capability 9.0 (PTX for sm_90a), sums in
// float32 (problem.cuh has the layouts).
//
// gemm's `tensor_half_turned_sm90` with A = X and a transposed B, of which a tile has 64 rows of G and the same of U in turn:
// gemm/tensor_half_turned_sm90.cu tells how it works. A thread ends with the sums of both for the same elements of Y, applies the
// activation to one and multiplies.
//   tile  TILE_M x TILE_N / 2 of Y;  block (256 or 384);  grid (BLOCKS or less)
#define PAIRED 1
#include "hmma/element.cuh"
#include "problem.cuh"

#include "half_epilogue.cuh"
#include "turned/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1)
linear_gated(const Half* __restrict__, const Half* __restrict__, Stored* Y SIZE_PARAMETER WORKSPACE_PARAMETER,
             const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w,
             const __grid_constant__ TensorMap map_y) {
  multiply_turned([=](unsigned) { return Epilogue{Y}; }, map_x, map_w, map_y, workspace);
}
