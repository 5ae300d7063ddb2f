// C = alpha op(A) op(B) + beta C in bfloat16 or float16 on the tensor cores of compute capability 9.0 (PTX for sm_90a),
// sums in float32, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// A, B and C are reached by tensor maps, which the host encodes (ptx/tensor_map.cuh). One thread loads steps of 64 k into a
// ring in shared memory, swizzled as the tensor cores read them, whichever way an operand lies; blocks of a cluster load
// shares of what they have in common and send them to one another. Two warpgroups multiply straight from there, and store
// through shared memory, while the next tile's steps are loaded. Rows that begin within sectors are copied (tma/copy.cuh).
//   tile  TILE_M x TILE_N, a warpgroup TILE_M / 2 rows of it (TILE_M 64: one warpgroup)
//   block (384, or 256): warpgroups that multiply, one that loads
//   grid  (BLOCKS or less): tiles in turn, in groups of GROUP_M row tiles of a cluster
//
// The tensor core cuts off what its sums cannot hold, as it does for the library.
// NVIDIA, "CUTLASS: Fast Linear Algebra in CUDA C++" (2017), and its persistent warp-specialised kernels for Hopper (2023),
// for warps that load and warps that multiply.
#include "half_epilogue.cuh"
#include "tma/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1)
gemm(float alpha, const Half* __restrict__ A, const Half* __restrict__ B, float beta, Stored* C
     SIZE_PARAMETER WORKSPACE_PARAMETER, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     const __grid_constant__ TensorMap map_c) {
  const auto epilogue_of = [=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; };
  multiply_boxes(epilogue_of, A, B, map_a, map_b, map_c, workspace);
}
