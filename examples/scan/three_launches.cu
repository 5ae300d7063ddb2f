// y[i] = x[0] + ... + x[i].  x, y: (n).
//
// Sums of tiles first, then what stands before each tile, then the tiles themselves: x is read twice, nobody waits for
// another block, and the same input gives the same bits in every run.
//   scan_sums:    block (BLOCK); grid (tiles).  The workspace gets each tile's sum.
//   scan_offsets: block (BLOCK); grid (1).      Each sum becomes the sum of the tiles before it.
//   scan:         block (BLOCK); grid (tiles)
//   shared memory, static: a sum for each warp
#include "problem.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
scan_sums(const REAL* __restrict__ x, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  __shared__ REAL of_warps[WARPS];
  Elements mine = load_tile(x, blockIdx.x);
  REAL total;
  sum_of_warps_before(scan_of_warp(mine), of_warps, total);
  if (threadIdx.x == 0) reinterpret_cast<REAL*>(workspace)[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan_offsets(const REAL* __restrict__, REAL* __restrict__, unsigned char* __restrict__ workspace) {
  __shared__ REAL of_warps[WARPS];
  REAL* const sums = reinterpret_cast<REAL*>(workspace);
  REAL before_all = 0;
  for (unsigned first = 0; first < TILES; first += BLOCK) {
    const unsigned tile = first + threadIdx.x;
    const REAL including = warp_scan(tile < TILES ? sums[tile] : REAL(0));
    REAL before = __shfl_up_sync(0xffffffffu, including, 1), total;
    if (threadIdx.x % 32 == 0) before = 0;
    before += before_all + sum_of_warps_before(__shfl_sync(0xffffffffu, including, 31), of_warps, total);
    if (tile < TILES) sums[tile] = before;
    before_all += total;
    __syncthreads();   // all have read of_warps
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
scan(const REAL* __restrict__ x, REAL* __restrict__ y, unsigned char* __restrict__ workspace) {
  __shared__ REAL of_warps[WARPS];
  Elements mine = load_tile(x, blockIdx.x);
  REAL total;
  const REAL before = sum_of_warps_before(scan_of_warp(mine), of_warps, total);
  store_tile(y, blockIdx.x, mine, reinterpret_cast<const REAL*>(workspace)[blockIdx.x] + before);
}
