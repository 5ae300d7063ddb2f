// C = alpha A B^T + beta C in bfloat16 or float16 for at most 64 rows of A, sums in float32, row-major (problem.cuh has the
// layouts). From compute capability 8.0 on.
//
// The time is that of reading B, once. Lanes load 16 bytes of its lines straight into registers, UNROLL steps of 64 k ahead
// of the products, and of A's rows as much; with up to 16 rows a warp's loads are of whole lines of the cache, and nothing has to
// be set up before the first of them. Warps of a block share k. Lines of B stand where a product has its 16 rows, rows of A where it has its 8
// columns. In the end the warps' sums are added up in shared memory, in a fixed order.
//   tile  m x (16 * ROWS)
//   block (32 * WARPS)
//   grid  (column tiles), those of all matrices of a batch one after the other
//
// The tensor core cuts off what its sums cannot hold, as it does for the library.
#include "stream/direct.cuh"

#include "half_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(float alpha, const Half* __restrict__ A, const Half* __restrict__ B, float beta, Stored* C) {
  stream_direct([=](unsigned matrix) { return Epilogue{alpha, beta, C + matrix * STRIDE_C}; }, A, B);
}
