// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// TF32 products as tensor_sm90.cu makes them with PRODUCTS == 1, which says what its tiles, blocks and grid are. Here CLUSTER
// blocks have tiles side by side, of the same lines in shared memory: each loads a share of these by a tensor map and sends
// it to all (wgmma/multicast.cuh). They are read from the L2 cache once for a cluster, and by fewer instructions, which takes
// less power: at sustained clocks that is what binds.
#ifndef PRODUCTS
#define PRODUCTS 1
#endif
#ifndef CLUSTER
#define CLUSTER 2
#endif
#include "epilogue.cuh"
#include "wgmma/kernel.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C,
     const __grid_constant__ TensorMap map) {
  compute_block(A, B, Epilogue{alpha, beta, C}, nullptr, map);
}
