// y[i] = x[0] + ... + x[i].  x, y: (n).
//
// Sums of tiles first, then what stands before each tile, then the tiles themselves: x is read twice, nobody waits for
// another block, and the same input gives the same bits in every run.
//   scan_sums:    block (BLOCK); grid (tiles).  The workspace gets each tile's sum.
//   scan_offsets: block (BLOCK); grid (1).      Each sum becomes the sum of the tiles before it.
//   scan:         block (BLOCK); grid (tiles)
//   shared memory, static: a tile and a sum for each warp
#include "problem.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
scan_sums(const REAL* __restrict__ x, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  __shared__ REAL of_warps[WARPS];
  REAL sum = 0, total;
#pragma unroll
  for (unsigned item = 0; item < ITEMS; ++item) {
    const unsigned i = blockIdx.x * TILE + item * BLOCK + threadIdx.x;
    if (i < N) sum += x[i];
  }
  block_scan_before(sum, of_warps, total);
  if (threadIdx.x == 0) reinterpret_cast<REAL*>(workspace)[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan_offsets(const REAL* __restrict__, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  __shared__ REAL of_warps[WARPS];
  REAL* const sums = reinterpret_cast<REAL*>(workspace);
  REAL before = 0;
  for (unsigned first = 0; first < TILES; first += BLOCK) {
    const unsigned tile = first + threadIdx.x;
    REAL total;
    const REAL offset = block_scan_before(tile < TILES ? sums[tile] : REAL(0), of_warps, total);
    if (tile < TILES) sums[tile] = before + offset;
    before += total;
    __syncthreads();   // all have read of_warps
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan(const REAL* __restrict__ x, REAL* __restrict__ y, unsigned char* __restrict__ workspace) {
  __shared__ REAL tile[TILE_IN_SHARED];
  __shared__ REAL of_warps[WARPS];
  const unsigned first = blockIdx.x * TILE;
  load_tile(x, first, tile);
  __syncthreads();
  REAL total;
  const REAL before = block_scan_before(own_sum(tile), of_warps, total);
  finish_tile(y, first, tile, reinterpret_cast<const REAL*>(workspace)[blockIdx.x] + before);
}
