// Y = act(X W^T + b).  X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major (problem.cuh, activation.cuh).
//
// More work per thread, coalesced: a block computes a TILE_M x TILE_N tile of Y, a thread WPT_M x WPT_N of it in
// registers, from double-buffered tiles in shared memory that neighbouring threads fill by neighbouring vectors. It is
// gemm's `wpt` with A = X and a transposed B = W (fma/wpt.cuh); sums start with the bias and are activated on
// their way to Y (layer.cuh), so that the fused layer costs no pass over Y beside the product.
//   block ((TILE_M / WPT_M) * (TILE_N / WPT_N)): one axis
//   grid  (row tiles * column tiles): one axis
// Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (SC08); fused epilogues: NVIDIA, "CUTLASS: Fast
// Linear Algebra in CUDA C++" (2017).
#include "layer.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
linear(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER) {
  compute_tile(X, W, b, Y);
}
