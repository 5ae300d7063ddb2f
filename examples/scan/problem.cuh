// The problem: y[i] = x[0] + ... + x[i].  x, y: (n).  And a block's part of it, which both variants share.
//
// A tile is BLOCK * ITEMS elements. It comes and goes in whole lines, by way of shared memory, where every thread then
// finds ITEMS neighbours of its own; PADDING moves these to other banks.
#pragma once
#include "common/integers.cuh"
#include "common/real.cuh"
#ifndef SHAPE_N
#define SHAPE_N 67108864   // length of x and y
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 8            // elements of a thread, neighbours
#endif
#ifndef PADDING
#define PADDING 1          // unused elements after every 32 of the tile in shared memory
#endif

constexpr unsigned N = SHAPE_N, TILE = BLOCK * ITEMS, TILES = tw::ceil_div(N, TILE), WARPS = BLOCK / 32;
constexpr unsigned TILE_IN_SHARED = TILE + TILE / 32 * PADDING;

// Where an element of the tile lies in shared memory.
__device__ __forceinline__ unsigned padded(unsigned i) { return i + i / 32 * PADDING; }

// The sum of `value` over this lane and those before it.
__device__ __forceinline__ REAL warp_scan(REAL value) {
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const REAL before = __shfl_up_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 >= distance) value += before;
  }
  return value;
}

// What the threads before this one add up to; `total` becomes the block's sum. Every thread must call it, and `of_warps`
// has WARPS elements of shared memory.
__device__ __forceinline__ REAL block_scan_before(REAL value, REAL* of_warps, REAL& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const REAL including = warp_scan(value);
  if (lane == 31) of_warps[warp] = including;
  __syncthreads();
  REAL before_warp = 0;
  total = 0;
#pragma unroll
  for (unsigned i = 0; i < WARPS; ++i) {
    if (i == warp) before_warp = total;
    total += of_warps[i];
  }
  // Not `including - value`, which would cancel.
  const REAL before = __shfl_up_sync(0xffffffffu, including, 1);
  return lane == 0 ? before_warp : before_warp + before;
}

// A tile to shared memory, zeros behind the end of x. The block must wait before it reads.
__device__ __forceinline__ void load_tile(const REAL* __restrict__ x, unsigned first, REAL* tile) {
#pragma unroll
  for (unsigned item = 0; item < ITEMS; ++item) {
    const unsigned i = item * BLOCK + threadIdx.x;
    tile[padded(i)] = first + i < N ? x[first + i] : REAL(0);
  }
}

// The sum of a thread's own elements.
__device__ __forceinline__ REAL own_sum(const REAL* tile) {
  REAL sum = 0;
#pragma unroll
  for (unsigned item = 0; item < ITEMS; ++item) sum += tile[padded(threadIdx.x * ITEMS + item)];
  return sum;
}

// Each element of the tile becomes `before`, what stands before the thread's elements, plus the sum up to it; then the
// tile goes to y. Every thread must call it.
__device__ __forceinline__ void finish_tile(REAL* __restrict__ y, unsigned first, REAL* tile, REAL before) {
#pragma unroll
  for (unsigned item = 0; item < ITEMS; ++item) {
    REAL& element = tile[padded(threadIdx.x * ITEMS + item)];
    element = before += element;
  }
  __syncthreads();
#pragma unroll
  for (unsigned item = 0; item < ITEMS; ++item) {
    const unsigned i = item * BLOCK + threadIdx.x;
    if (first + i < N) y[first + i] = tile[padded(i)];
  }
}
