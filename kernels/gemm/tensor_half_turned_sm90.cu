// C = alpha op(A) op(B) + beta C in bfloat16 or float16 on the tensor cores of compute capability 9.0 (PTX for sm_90a),
// sums in float32, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// The product is turned: columns of B stand where an instruction has its 64 rows, rows of A where it takes any multiple of 8, so
// that tiles suit any number of rows. One thread loads steps of 64 k by tensor maps into a ring in shared memory; warpgroups
// multiply straight from there and store through shared memory, while the next tile's steps are loaded. Blocks of a cluster take
// turns to load what they share, or have a part of k each and add up their sums through their shared memory; several clusters
// do so through the workspace, the last to arrive for all.
//   tile  TILE_M x TILE_N, a warpgroup TILE_N / MULTIPLIERS columns of it
//   block (256 to 512): warpgroups that multiply, one that loads
//   grid  (BLOCKS or less): tiles in turn, in groups of GROUP_M row tiles of a cluster
//
// The tensor core cuts off what its sums cannot hold, as it does for the library.
#include "half_epilogue.cuh"
#include "turned/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1)
gemm(float alpha, const Half* __restrict__, const Half* __restrict__, float beta, Stored* C SIZE_PARAMETER
     WORKSPACE_PARAMETER, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     const __grid_constant__ TensorMap map_c) {
  multiply_turned([=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; }, map_a, map_b, map_c,
                  workspace);
}
