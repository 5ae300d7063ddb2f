// What a warpgroup of `tensor3xfp16_small_sm90` works on: 64 rows and 64 columns of C, TILE_K terms at a time, and which of
// their numbers a lane has.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"
#include "common/real.cuh"

#ifndef TILE_K
#define TILE_K 64     // terms of a step: numbers of a step have scales of their own
#endif
#ifndef SLICES
#define SLICES 1      // warpgroups of a block that share the terms of a tile
#endif
#ifndef SPLIT_K
#define SPLIT_K 1     // blocks, a cluster, that do
#endif
#ifndef RESIDENT
#define RESIDENT 1    // blocks that find room on a multiprocessor
#endif

constexpr unsigned SIDE = 64, WARPS = 4, GROUP_THREADS = 32 * WARPS, THREADS = SLICES * GROUP_THREADS;
constexpr unsigned TILES_N = tw::ceil_div(N, SIDE);
constexpr unsigned PARTS_K = SLICES * SPLIT_K, STEPS = tw::ceil_div(K, TILE_K * PARTS_K);   // of a warpgroup
constexpr bool FULL_M = M % SIDE == 0, FULL_N = N % SIDE == 0, FULL_K = K % (TILE_K * PARTS_K) == 0;
constexpr unsigned K16 = TILE_K / 16, QUADS = 8;   // what a thread has of the numbers of A, of B, and of the tile's sums
using Sums = REAL[2][16];   // of two rows, columns 16 q + 4 t to 4 t + 3

// Where lane 4 g + t of a warp has its numbers: 16 rows of A and 16 columns of B are the warp's. The order of terms and of
// columns is free as long as both operands, or the sums, know it: of 16 terms those that tensor cores have at 2 t and 2 t
// + 1, and 8 behind, are 4 t to 4 t + 3 in memory, so that a lane reads 16 bytes; columns alike, so that it writes 16.
struct Place {
  unsigned warp, g, t, slice, matrix, m, n, column, term;   // n: of the tile; m, column: of the warp's rows and columns
  __device__ __forceinline__ Place() {
    slice = SLICES == 1 ? 0 : __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);   // known to be the warp's
    warp = SLICES == 1 ? threadIdx.x / 32 : threadIdx.x / 32 % WARPS;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
    const unsigned tile = blockIdx.x / SPLIT_K;
    matrix = BATCH == 1 ? 0 : blockIdx.y + warp / WARPS;   // 0 more; written so, the machine code is what was verified
    m = tile / TILES_N * SIDE + warp % WARPS * 16;
    n = tile % TILES_N * SIDE;
    column = n + warp % WARPS * 16;
    term = (blockIdx.x % SPLIT_K * SLICES + slice) * (STEPS * TILE_K);
  }
  // Row number `half` of the lane's two rows.
  __device__ __forceinline__ unsigned row(unsigned half) const { return m + (TRANS_A ? 2 * g + half : g + 8 * half); }
};
