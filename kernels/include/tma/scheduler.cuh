// Which tiles each cluster of blocks takes: one, and then every so many-th. With SPLIT_K, which steps of one tile a block
// takes.
#pragma once
#include "common/moved_tile.cuh"
#include "common/raster.cuh"
#include "ptx/cluster.cuh"
#include "tma/parameters.cuh"

constexpr unsigned TEAM_M = TILE_M * CLUSTER_M, TEAM_N = TILE_COLUMNS * CLUSTER_N;   // of a cluster's tile
#define MATRIX_TILES (tw::ceil_div(M, TEAM_M) * tw::ceil_div(N, TEAM_N))
#define TILES (MATRIX_TILES * BATCH)
constexpr unsigned TEAM = SPLIT_K > 1 ? SPLIT_K : CLUSTER;   // neighbouring blocks that have one tile of a cluster

// A block's place among those that share operands with it.
struct Place {
  unsigned row, column;
  __device__ __forceinline__ Place() {
    const unsigned rank = CLUSTER_M * CLUSTER_N == 1 ? 0 : cluster_ctarank();
    row = rank % CLUSTER_M;
    column = rank / CLUSTER_M;
  }
};

// The block's tiles in turn: first row and column, and where in the batch; and its steps of each.
struct Tile {
  unsigned number, m, n, matrix;
  __device__ __forceinline__ Tile() : number(blockIdx.x / TEAM) {}
  __device__ __forceinline__ bool is_valid() const { return number < TILES; }
  __device__ __forceinline__ void advance() { number += gridDim.x / TEAM; }
  __device__ __forceinline__ void find(const Place& place) {
    matrix = BATCH == 1 ? 0 : number / MATRIX_TILES;
    grouped_raster<TEAM_M, TEAM_N, GROUP_M>(BATCH == 1 ? number : number % MATRIX_TILES, m, n);
    m += place.row * TILE_M;
    n += place.column * TILE_COLUMNS;
    if constexpr (MOVES_TILES && !IS_PACKED && !M_DIVIDES(TEAM_M)) m = moved_inside<TILE_M>(m, M);
    if constexpr (MOVES_TILES && !IS_PACKED && N % TEAM_N != 0) n = moved_inside<TILE_COLUMNS>(n, N);
  }
  // Which of the tile's blocks this is, and from which step the one of that number begins.
  __device__ __forceinline__ static unsigned part() { return SPLIT_K == 1 ? 0 : blockIdx.x % SPLIT_K; }
  __device__ __forceinline__ static unsigned first_step(unsigned part) { return part * STEPS / SPLIT_K; }
};
