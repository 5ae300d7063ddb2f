// Y = act(X W^T + b).  X: (m, k), W: (n, k), b: (n), Y: (m, n), all row-major (problem.cuh, activation.cuh).
//
// More work per thread with STRIDED access, slow ON PURPOSE: a step to learn from, between `tiled` and `wpt`.
// Once a thread has several elements of a tile to load, "give each thread a run of neighbours" looks natural, as it is
// on a CPU. But a warp's 32 threads load at the same moment, and then their addresses are a run apart: each load
// touches as many 32-byte sectors as there are runs, and most of each sector is not what this load asked for. `wpt`
// gives neighbouring threads neighbouring elements (coalescing); LOAD_RUNS and the width of a load differ, no more.
//   block ((TILE_M / WPT_M) * (TILE_N / WPT_N)): one axis
//   grid  (row tiles * column tiles): one axis
// Shared memory, registers and order of summation are those of `wpt` (fma/wpt.cuh, layer.cuh).
// CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
#define LOAD_RUNS 1
#define VECTOR_WIDTH 1   // a vector load would hide half of the lesson
#include "layer.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
linear(const REAL* __restrict__ X, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ Y
       SIZE_PARAMETER) {
  compute_tile(X, W, b, Y);
}
