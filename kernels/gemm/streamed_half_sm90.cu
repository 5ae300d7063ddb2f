// C = alpha A op(B) + beta C in bfloat16 or float16 for at most 64 rows of A, sums in float32, row-major; op transposes where
// TRANS_B is 1 (problem.cuh has the layouts). For the tensor cores of compute capability 9.0 (PTX for sm_90a).
//
// The time is that of reading B, once. One thread loads steps of 64 k of a block's columns of B, and of all rows of A, by
// tensor maps into a ring in shared memory, which takes all that there is: so many bytes are under way that memory is
// never idle. Columns of B stand where a product has its 64 rows, rows of A where it has 8 to 64 columns, so that few
// rows waste little. Blocks of a cluster share k, and add up their sums through their shared memory, in a fixed order.
//   tile  m x TILE_N
//   block (160): a warpgroup that multiplies, a warp that loads
//   grid  (column tiles * SPLIT_K), those of all matrices of a batch one after the other
//
// The tensor core cuts off what its sums cannot hold, as it does for the library.
#include "stream/parameters.cuh"

#include "half_epilogue.cuh"
#include "stream/product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) __cluster_dims__(SPLIT_K, 1, 1)
gemm(float alpha, const Half* __restrict__, const Half* __restrict__, float beta, Stored* C,
     const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b) {
  stream_product([=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; }, map_a, map_b);
}
