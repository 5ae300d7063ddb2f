// Which tiles, or which steps of them, each block takes.
#pragma once
#include "common/work.cuh"
#include "wgmma/parameters.cuh"

// All that a block does. With SPLIT_K == 1 whole tiles, one for each block of the grid and then the next. Else all
// steps of all tiles lie in a row, which is cut into as many equal pieces as there are blocks: "stream-K" of Osama et
// al. (2023). A block then has the end of a tile, whole tiles, and the beginning of another, or, where it is one of
// many for a tile, a part.
constexpr unsigned UNITS = tw::ceil_div(K, STEP_K * STEPS_AT_ONCE);   // of a tile; what is never cut
constexpr unsigned ALL_TILES = BATCH * TILES;
constexpr unsigned GRID = tw::min(unsigned{BLOCKS / CLUSTER}, ALL_TILES * SPLIT_K);   // clusters, or blocks
// Most tiles of a block, and how many of them it goes through before it looks which ones need a second pass.
constexpr unsigned MOST_TILES = SPLIT_K == 1 ? tw::ceil_div(ALL_TILES, GRID) : ALL_TILES / GRID + 2;
constexpr unsigned ROUND = SPLIT_K == 1 ? tw::min(MOST_TILES, 256u) : MOST_TILES, ROUNDS = tw::ceil_div(MOST_TILES, ROUND);

struct TileScheduler {
  unsigned at, end;   // a tile, or a unit in the row of all

  // The first unit of a block, and the block that has a unit.
  __device__ __forceinline__ static unsigned start_of(unsigned block) {
    return static_cast<unsigned>(static_cast<unsigned long long>(block) * (ALL_TILES * UNITS) / GRID);
  }
  __device__ __forceinline__ static unsigned block_of(unsigned unit) {
    return static_cast<unsigned>((static_cast<unsigned long long>(unit + 1) * GRID - 1) / (ALL_TILES * UNITS));
  }

  __device__ __forceinline__ explicit TileScheduler(unsigned round) {
    at = SPLIT_K == 1 ? blockIdx.x / CLUSTER + round * (ROUND * GRID) : start_of(blockIdx.x);
    end = SPLIT_K > 1 ? start_of(blockIdx.x + 1)
        : ROUNDS == 1 ? ALL_TILES : tw::min(ALL_TILES, (round + 1) * (ROUND * GRID));
  }
  __device__ __forceinline__ bool is_valid() const { return at < end; }
  __device__ __forceinline__ unsigned units() const {
    return SPLIT_K == 1 ? UNITS : tw::min(UNITS - at % UNITS, end - at);
  }
  __device__ __forceinline__ void advance() { at += SPLIT_K == 1 ? GRID : units(); }

  // How many tiles of the round the block has before this one.
  __device__ __forceinline__ unsigned number() const {
    return SPLIT_K == 1 ? at / GRID % ROUND : at / UNITS - start_of(blockIdx.x) / UNITS;
  }

  __device__ __forceinline__ Work work() const {
    Work work = {};
    work.tile = at;
    work.parts = 1;
    if constexpr (SPLIT_K > 1) {
      work.tile = at / UNITS;
      work.first_step = at % UNITS * STEPS_AT_ONCE;
      const unsigned first = block_of(work.tile * UNITS);
      work.part = blockIdx.x - first;
      work.parts = block_of(work.tile * UNITS + (UNITS - 1)) - first + 1;
    }
    grouped_raster<TEAM_M, TEAM_N, GROUP_M>(BATCH == 1 ? work.tile : work.tile % TILES, work.m, work.n);
    if (CLUSTER > 1) (SHARED_A ? work.n : work.m) += blockIdx.x % CLUSTER * TILE_R;
    return work;
  }
};

// Which matrix of the batch the work is on.
__device__ __forceinline__ unsigned matrix_of(const Work& work) { return BATCH == 1 ? 0 : work.tile / TILES; }
