// Which tiles, or which steps of them, each cluster of blocks takes.
#pragma once
#include "common/raster.cuh"
#include "parts/workspace.cuh"

constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_N});
#define MATRIX_TILES (tw::ceil_div(M, unsigned{TILE_M * CLUSTER}) * TILES_N)   // of clusters
#define TILES (MATRIX_TILES * BATCH)
#define TEAMS tw::min(unsigned{BLOCKS / CLUSTER}, TILES * SPLIT_K)   // clusters of the grid

// With SPLIT_K == 1 whole tiles, one for each team and then the next. Else all steps of all tiles lie in a row, which is
// cut into as many equal pieces as there are teams: "stream-K" of Osama et al. (2023). A team then has the end of a tile,
// whole tiles, and the beginning of another, or, where it is one of many for a tile, a part.
struct TileScheduler {
  unsigned at, end;   // a tile, or a step in the row of all

  // The first step of a team, and the team that has a step.
  __device__ __forceinline__ static unsigned start_of(unsigned team) {
    return static_cast<unsigned>(static_cast<unsigned long long>(team) * (TILES * STEPS) / TEAMS);
  }
  __device__ __forceinline__ static unsigned team_of(unsigned step) {
    return static_cast<unsigned>((static_cast<unsigned long long>(step + 1) * TEAMS - 1) / (TILES * STEPS));
  }
  __device__ __forceinline__ static unsigned team() { return blockIdx.x / CLUSTER; }

  __device__ __forceinline__ TileScheduler()
      : at(SPLIT_K == 1 ? team() : start_of(team())), end(SPLIT_K == 1 ? TILES : start_of(team() + 1)) {}
  __device__ __forceinline__ bool is_valid() const { return at < end; }
  __device__ __forceinline__ unsigned steps() const {
    return SPLIT_K == 1 ? STEPS : tw::min(STEPS - at % STEPS, end - at);
  }
  __device__ __forceinline__ unsigned first_step() const { return SPLIT_K == 1 ? 0 : at % STEPS; }
  __device__ __forceinline__ void advance() { at += SPLIT_K == 1 ? TEAMS : steps(); }
  __device__ __forceinline__ unsigned tile() const { return SPLIT_K == 1 ? at : at / STEPS; }
};

// Where in the batch, and where in its matrix, the block of that rank in the cluster has its tile, counted in tiles.
struct Tile {
  unsigned matrix, row, column;
  __device__ __forceinline__ Tile(unsigned number, unsigned rank) {
    matrix = BATCH == 1 ? 0 : number / MATRIX_TILES;
    grouped_raster<TILE_M * CLUSTER, TILE_N, GROUP_M>(BATCH == 1 ? number : number % MATRIX_TILES, row, column);
    row = row / TILE_M + rank;
    column /= TILE_N;
  }
  // Which matrix of the operand it is.
  template <class Operand>
  __device__ __forceinline__ unsigned matrix_of() const {
    return Operand::MATRICES == 1 ? 0 : matrix;
  }
};
