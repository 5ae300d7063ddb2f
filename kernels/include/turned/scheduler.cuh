// Which tiles each cluster of blocks takes: one, and then every so many-th; and which steps of a tile a block takes.
#pragma once
#include "common/moved_tile.cuh"
#include "common/raster.cuh"
#include "ptx/cluster.cuh"
#include "turned/parameters.cuh"

constexpr unsigned TEAM_M = TILE_M * CLUSTER_M, TEAM_N = TILE_COLUMNS * CLUSTER_N;   // of a cluster's tile
#define MATRIX_TILES (tw::ceil_div(M, TEAM_M) * tw::ceil_div(N, TEAM_N))
#define TILES (MATRIX_TILES * BATCH)

// A block's place in its cluster: among those that share operands with it, and of those with the same tile.
struct Place {
  unsigned row, column, part, portion;   // the last of all PORTIONS of k, part that of a cluster's
  __device__ __forceinline__ Place() {
    const unsigned rank = CLUSTER == 1 ? 0 : cluster_ctarank();
    row = rank % CLUSTER_M;
    column = rank / CLUSTER_M % CLUSTER_N;
    part = rank / (CLUSTER_M * CLUSTER_N);
    portion = SPLIT_FAR == 1 ? part : blockIdx.x / CLUSTER % SPLIT_FAR;
  }

  // The rank of a block of the same part, or of another one.
  __device__ __forceinline__ unsigned rank_of(unsigned row_there, unsigned column_there) const {
    return row_there + CLUSTER_M * (column_there + CLUSTER_N * part);
  }
  __device__ __forceinline__ unsigned rank_of_part(unsigned part_there) const {
    return row + CLUSTER_M * (column + CLUSTER_N * part_there);
  }
  // The blocks with the same rows of A, and those with the same columns of B: a bit for each.
  __device__ __forceinline__ unsigned sharers_a() const {
    unsigned blocks = 0;
#pragma unroll
    for (unsigned there = 0; there < CLUSTER_N; ++there) blocks |= 1u << rank_of(row, there);
    return blocks;
  }
  __device__ __forceinline__ unsigned sharers_b() const { return ((1u << CLUSTER_M) - 1) << rank_of(0, column); }
};

// The block's tiles in turn: first row and column, and where in the batch; and its steps of each.
struct Tile {
  unsigned number, m, n, matrix;
  __device__ __forceinline__ Tile() : number(blockIdx.x / CLUSTER / SPLIT_FAR) {}
  __device__ __forceinline__ bool is_valid() const { return number < TILES; }
  __device__ __forceinline__ void advance() { number += gridDim.x / CLUSTER; }
  __device__ __forceinline__ void find(const Place& place) {
    matrix = BATCH == 1 ? 0 : number / MATRIX_TILES;
    grouped_raster<TEAM_M, TEAM_N, GROUP_M>(BATCH == 1 ? number : number % MATRIX_TILES, m, n);
    m += place.row * TILE_M;
    n += place.column * TILE_COLUMNS;
    if constexpr (MOVES_TILES && !M_DIVIDES(TEAM_M)) m = moved_inside<TILE_M>(m, M);
    if constexpr (MOVES_TILES && N % TEAM_N != 0) n = moved_inside<TILE_COLUMNS>(n, N);
  }
  __device__ __forceinline__ static unsigned first_step(unsigned portion) { return portion * STEPS / PORTIONS; }
};
