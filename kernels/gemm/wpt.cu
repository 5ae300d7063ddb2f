// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// More work per thread: a block computes a TILE_M x TILE_N tile of C, a thread WPT_M x WPT_N of it in registers, from
// double-buffered tiles in shared memory that are filled by vector loads. fma/wpt.cuh has the machine, its
// mapping and its parameters; `linear` has the same one inside.
//   block ((TILE_M / WPT_M) * (TILE_N / WPT_N)): one axis
//   grid  (row tiles * column tiles, matrices of the batch)
// Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (SC08); NVIDIA, "CUTLASS: Fast Linear Algebra in
// CUDA C++" (2017), for the hierarchy of tiles.
#include "fma/wpt.cuh"
#include "problem.cuh"

// The element of C for one finished inner product.
struct Scale {
  static constexpr bool READS_C = !BETA_ZERO;
  REAL alpha, beta;
  __device__ __forceinline__ REAL operator()(REAL product, REAL old) const {
    return BETA_ZERO ? alpha * product : alpha * product + beta * old;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C
     SIZE_PARAMETER) {
  const Origin origin = tile_origin(blockIdx.x);
  const Patch patch(threadIdx.x);
  REAL sum[WPT_M][WPT_N] = {};
  const unsigned matrix = matrix_of_block();
  add_products(sum, A + matrix * STRIDE_A, B + matrix * STRIDE_B, origin, patch);
  write_tile(sum, C + matrix * STRIDE_C, origin, patch, Scale{alpha, beta});
}
