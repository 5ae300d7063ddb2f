// y[j, i] = x[i, j].  x: (m, n), y: (n, m), row-major.
//
// A block turns a TILE x TILE part by way of shared memory, so that a warp reads and writes whole lines of memory. A
// thread moves VECTOR neighbours at a time; PADDING shifts each row of the tile to other banks, without which a column of
// it would lie in one.
//   block (TILE / VECTOR, ROWS); grid (n / TILE, m / TILE), rounded up
// Ruetsch and Micikevicius, "Optimizing Matrix Transpose in CUDA" (NVIDIA, 2009).
#include "problem.cuh"
#ifndef TILE
#define TILE 32      // rows and columns of a block's part
#endif
#ifndef ROWS
#define ROWS 8       // rows of the tile that move at a time
#endif
#ifndef VECTOR
#define VECTOR 1      // elements of one access to memory
#endif
#ifndef PADDING
#define PADDING 1    // unused elements behind a row of the tile
#endif

extern "C" __global__ void __launch_bounds__(TILE / VECTOR * ROWS)
transpose(const REAL* __restrict__ x, REAL* __restrict__ y) {
  __shared__ REAL tile[TILE][TILE + PADDING];
  const unsigned top = blockIdx.y * TILE, left = blockIdx.x * TILE, along = threadIdx.x * VECTOR;
#pragma unroll
  for (unsigned row = threadIdx.y; row < TILE; row += ROWS) {
    if (top + row >= M || left + along >= N) continue;
    const Pack<VECTOR> pack = load_pack<VECTOR>(x + static_cast<size_t>(top + row) * N + left + along);
#pragma unroll
    for (unsigned k = 0; k < VECTOR; ++k) tile[row][along + k] = pack.lane[k];
  }
  __syncthreads();
#pragma unroll
  for (unsigned column = threadIdx.y; column < TILE; column += ROWS) {
    if (left + column >= N || top + along >= M) continue;
    Pack<VECTOR> pack;
#pragma unroll
    for (unsigned k = 0; k < VECTOR; ++k) pack.lane[k] = tile[along + k][column];
    store_pack<VECTOR>(y + static_cast<size_t>(left + column) * M + top + along, pack);
  }
}
