// What a block of the variant `tensor_fp64` works on: the parameters of its tile, and which steps of which tiles.
#pragma once
#ifndef REAL   // what these products are of
#define REAL double
#define REAL_BYTES 8
#endif
#include "common/product.cuh"
#include "common/real.cuh"
#include "common/work.cuh"

#ifndef TILE_K
#define TILE_K 16
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef WARP_M
#define WARP_M 32
#endif
#ifndef WARP_N
#define WARP_N 32
#endif
#ifndef MMA_K
#define MMA_K 4        // terms of one product of a warp
#endif
#ifndef AHEAD
#define AHEAD 1        // 1: the next terms are held beside those that are multiplied; 0: they take their place
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1   // of a multiprocessor, that registers must suffice for
#endif
#ifndef SPLIT_K
#define SPLIT_K 1      // blocks of each tile, where BLOCKS is 0
#endif
#ifndef BY_CLUSTER
#define BY_CLUSTER 0   // 1: of the SPLIT_K blocks up to 8 are a cluster, as many as divide them
#endif
#ifndef BLOCKS
#define BLOCKS 0       // of the grid, which share all tiles evenly; 0: as many as there are tiles times SPLIT_K
#endif
#define CLUSTER (!BY_CLUSTER || SPLIT_K % 2 ? 1 : SPLIT_K % 4 ? 2 : SPLIT_K % 8 ? 4 : 8)
#define STEPS ((SHAPE_K + TILE_K - 1u) / TILE_K)
#define MATRIX_TILES                                         \
  ((SHAPE_M + WARPS_M * WARP_M - 1u) / (WARPS_M * WARP_M)    \
   * ((SHAPE_N + WARPS_N * WARP_N - 1u) / (WARPS_N * WARP_N)))
#define ALL_TILES (MATRIX_TILES * SHAPE_BATCH)
#if BLOCKS
// Each block has as many tiles of its own as every block can have, less one where tiles are left over: those left and
// the ones kept back are shared by steps, so that a tile has few parts.
#define SHARED_TILES (ALL_TILES % BLOCKS == 0 ? 0 : ALL_TILES < BLOCKS ? ALL_TILES : ALL_TILES % BLOCKS + BLOCKS)
#define WALKED (SHARED_TILES ? (SHARED_TILES * STEPS + BLOCKS - 1) / BLOCKS : 1)   // steps of one block, of those
// Parts of a tile in the workspace, at most: what WALKED leaves of a tile that starts anywhere, or one of each cluster.
#define SPLIT (SHARED_TILES ? (STEPS + WALKED - 2) / WALKED + 1 : 1)
#else
#define SHARED_TILES ALL_TILES
#define SPLIT (SPLIT_K / CLUSTER)
#endif
#include "common/workspace.cuh"

constexpr unsigned TILE_M = WARPS_M * WARP_M;
constexpr unsigned TILE_N = WARPS_N * WARP_N;
constexpr unsigned THREADS = WARPS_M * WARPS_N * 32;
constexpr unsigned GROUP_M = 8;   // row tiles that share columns of B in the L2 cache; 4 and 16 were no faster (H200)
constexpr unsigned FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;   // a warp's products of the same terms
constexpr unsigned WPT_M = WARP_M / 8, WPT_N = WARP_N / 4;   // rows and columns of which a thread has the sums

// What a block works on, one piece after the other.
class Agenda {
 public:
  // The next piece, if there is one, of those matrices of the batch.
  __device__ __forceinline__ bool next(Work& work, unsigned& matrix) {
    if (!choose(work)) return false;
    matrix = BATCH == 1 ? 0 : work.tile / MATRIX_TILES;
    const unsigned tile = BATCH == 1 ? work.tile : work.tile % MATRIX_TILES;
    grouped_raster<TILE_M, TILE_N, GROUP_M>(tile, work.written_m, work.written_n);
    work.m = moved_inside<TILE_M>(M, work.written_m);
    work.n = moved_inside<TILE_N>(N, work.written_n);
    return true;
  }

 private:
#if BLOCKS
  unsigned tile = SHARED_TILES + blockIdx.x;
  unsigned from = blockIdx.x * WALKED, end = tw::min(from + WALKED, SHARED_TILES * STEPS);

  __device__ __forceinline__ bool choose(Work& work) {
    if (SHARED_TILES > 0 && from < end) {
      work.tile = from / STEPS;
      work.first_step = from % STEPS;
      work.steps = tw::min(STEPS - work.first_step, end - from);
      const unsigned first = work.tile * STEPS;   // of the tile
      work.part = from / WALKED - first / WALKED;
      work.parts = (first + STEPS - 1) / WALKED - first / WALKED + 1;
      from += work.steps;
      return true;
    }
    if (tile >= ALL_TILES) return false;
    work.tile = tile;
    work.first_step = work.part = 0;
    work.steps = STEPS;
    work.parts = 1;
    tile += BLOCKS;
    return true;
  }
#else
  bool is_done = false;

  __device__ __forceinline__ bool choose(Work& work) {
    if (is_done) return false;
    is_done = true;
    work = numbered_work<SPLIT_K>(blockIdx.x);
    share_steps<STEPS, SPLIT_K>(work);
    return true;
  }
#endif
};
