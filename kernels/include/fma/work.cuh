// What a block of the variant `register` works on: the parameters of its tile, and which steps of which tiles it walks.
#pragma once
#include "common/product.cuh"
#include "common/real.cuh"
#include "common/work.cuh"

#ifndef TILE_K
#define TILE_K 8
#endif
#ifndef WARPS_M
#define WARPS_M 4
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef LANES_M
#define LANES_M 4
#endif
#ifndef WPT_M
#define WPT_M 8
#endif
#ifndef WPT_N
#define WPT_N 8
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef SHARE_K
#define SHARE_K 128    // what a block walks of a tile's steps, in 128ths; more than 128: of several tiles
#endif
#ifndef BY_CLUSTER
#define BY_CLUSTER 0   // 1: of the blocks that share a tile up to 8 are a cluster
#endif
#ifndef HELD
#define HELD 0         // 1: what is turned on the way to shared memory travels through registers, by 16 bytes
#endif
#ifndef LAVISH
#define LAVISH 0       // 1: registers as if one block a multiprocessor were enough; 0: ptxas keeps to what more blocks need
#endif
#if LAVISH
#define BOUNDS THREADS, 1
#else
#define BOUNDS THREADS
#endif
#ifndef BY_COLUMNS
#define BY_COLUMNS 1   // a thread's products of one k: 0 along rows of its sums, 1 along columns
#endif
#define STEPS ((SHAPE_K + TILE_K - 1u) / TILE_K)
// Steps of one block, where blocks cross from tile to tile: STEPS * SHARE_K / 128, rounded up.
#define WALKED (STEPS / 128 * SHARE_K + (STEPS % 128 * SHARE_K + 127) / 128)
#define CROSSING (SHARE_K > 128 || 128 % SHARE_K != 0)
#define SPLIT_K (CROSSING ? 1 : 128 / SHARE_K)               // blocks of each tile, where they do not
#define CLUSTER (!BY_CLUSTER ? 1 : SPLIT_K < 8 ? SPLIT_K : 8)
// Parts of a tile in the workspace, at most: what WALKED leaves of a tile that starts anywhere, or one of each cluster.
#define SPLIT (CROSSING ? (STEPS + WALKED - 2) / WALKED + 1 : SPLIT_K / CLUSTER)
#include "common/workspace.cuh"

constexpr unsigned LANES_N = 32 / LANES_M;
constexpr unsigned TILE_M = WARPS_M * LANES_M * WPT_M;
constexpr unsigned TILE_N = WARPS_N * LANES_N * WPT_N;
constexpr unsigned THREADS = WARPS_M * WARPS_N * 32;
constexpr unsigned GROUP_M = 8;   // row tiles; 4 to 16 were equally fast (H200)
constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_N});
#define MATRIX_TILES (tw::ceil_div(M, TILE_M) * TILES_N)
#define ALL_STEPS (MATRIX_TILES * STEPS)   // of all tiles, one tile after the other

// The work of a block that stays on its tile.
__device__ __forceinline__ Work work_of(unsigned block) {
  Work work = numbered_work<SPLIT_K>(block);
  share_steps<STEPS, SPLIT_K>(work);
  place_tile<TILE_M, TILE_N, GROUP_M>(work);
  return work;
}

// The work of a block that crosses from tile to tile: from step `from` of all steps to the end of its tile or to `end`.
__device__ __forceinline__ Work work_between(unsigned from, unsigned end) {
  Work work;
  work.tile = from / STEPS;
  work.first_step = from % STEPS;
  work.steps = tw::min(STEPS - work.first_step, end - from);
  const unsigned first = work.tile * STEPS;   // of the tile
  work.part = from / WALKED - first / WALKED;
  work.parts = (first + STEPS - 1) / WALKED - first / WALKED + 1;
  place_tile<TILE_M, TILE_N, GROUP_M>(work);
  return work;
}
