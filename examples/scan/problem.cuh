// The problem: y[i] = x[0] + ... + x[i].  x, y: (n).  And a block's part of it, which both variants share.
//
// A tile is BLOCK * ITEMS elements, an equal part of it for each warp. A warp reads its part in lines of 32 packs of 16
// bytes, so that a thread's ITEMS elements are packs of several lines: whole lines of memory, and no shared memory.
#pragma once
#include "common/global_memory.cuh"
#include "common/integers.cuh"
#ifndef SHAPE_N
#define SHAPE_N 67108864   // length of x and y
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 8            // elements of a thread
#endif

constexpr unsigned N = SHAPE_N, TILE = BLOCK * ITEMS, TILES = tw::ceil_div(N, TILE), WARPS = BLOCK / 32;
constexpr unsigned LINES = ITEMS / QUAD, LINE = 32 * QUAD;

// A thread's elements, or the sums up to each of them.
struct Elements {
  Pack<QUAD> packs[LINES];
};

// Where this thread's first element lies in x and y.
__device__ __forceinline__ unsigned first_of(unsigned tile) {
  return tile * TILE + threadIdx.x / 32 * (32 * ITEMS) + threadIdx.x % 32 * QUAD;
}

// This thread's elements of a tile, zeros behind the end of x.
__device__ __forceinline__ Elements load_tile(const REAL* __restrict__ x, unsigned tile) {
  const unsigned first = first_of(tile);
  Elements mine;
#pragma unroll
  for (unsigned line = 0; line < LINES; ++line) {
    const unsigned i = first + line * LINE;
    if (i + QUAD <= N) {
      mine.packs[line] = load_streaming<QUAD>(x + i);
    } else {
#pragma unroll
      for (unsigned k = 0; k < QUAD; ++k) mine.packs[line].lane[k] = i + k < N ? x[i + k] : REAL(0);
    }
  }
  return mine;
}

// The sum of `value` over this lane and those before it.
__device__ __forceinline__ REAL warp_scan(REAL value) {
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const REAL before = __shfl_up_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 >= distance) value += before;
  }
  return value;
}

// Each element becomes the sum over the warp's part of the tile up to it; what comes back is the sum of all of it.
__device__ __forceinline__ REAL scan_of_warp(Elements& mine) {
  REAL before_line = 0;
#pragma unroll
  for (unsigned line = 0; line < LINES; ++line) {
    REAL* const lane = mine.packs[line].lane;
#pragma unroll
    for (unsigned k = 1; k < QUAD; ++k) lane[k] += lane[k - 1];
    const REAL including = warp_scan(lane[QUAD - 1]);
    REAL before = __shfl_up_sync(0xffffffffu, including, 1);   // not `including - lane`, which would cancel
    before = threadIdx.x % 32 == 0 ? before_line : before_line + before;
#pragma unroll
    for (unsigned k = 0; k < QUAD; ++k) lane[k] += before;
    before_line += __shfl_sync(0xffffffffu, including, 31);
  }
  return before_line;
}

// What the warps before this one add up to, and in `total` all of them. Every thread must call it with its warp's sum;
// `of_warps` has WARPS elements of shared memory.
__device__ __forceinline__ REAL sum_of_warps_before(REAL of_warp, REAL* of_warps, REAL& total) {
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  REAL before = 0;
  total = 0;
#pragma unroll
  for (unsigned i = 0; i < WARPS; ++i) {
    if (i == threadIdx.x / 32) before = total;
    total += of_warps[i];
  }
  return before;
}

// The sums go to y, each with what stands before the warp's part.
__device__ __forceinline__ void store_tile(REAL* __restrict__ y, unsigned tile, const Elements& mine, REAL before) {
  const unsigned first = first_of(tile);
#pragma unroll
  for (unsigned line = 0; line < LINES; ++line) {
    const unsigned i = first + line * LINE;
    Pack<QUAD> sums = mine.packs[line];
#pragma unroll
    for (unsigned k = 0; k < QUAD; ++k) sums.lane[k] += before;
    if (i + QUAD <= N) {
      store_global<QUAD>(y + i, sums);
    } else {
#pragma unroll
      for (unsigned k = 0; k < QUAD; ++k) {
        if (i + k < N) y[i + k] = sums.lane[k];
      }
    }
  }
}
