// A block's unit of work: a tile of the product, or some steps along k of one.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"
#include "common/raster.cuh"

struct Work {
  unsigned m, n;                   // first row and column of the tile
  unsigned written_m, written_n;   // first row and column of it that are this tile's own to write
  unsigned tile, part, parts;      // the tile's number, and which of its `parts` parts these steps are
  unsigned first_step, steps;
};

// Where a tile starts that would start at `nominal`: inside the matrix as a whole, where that is large enough.
template <unsigned TILE>
__device__ __forceinline__ unsigned moved_inside(unsigned extent, unsigned nominal) {
  return extent % TILE == 0 || extent < TILE ? nominal : tw::min(nominal, extent - TILE);
}

// Says where the tile of that number is, HEIGHT x WIDTH and in groups of GROUP row tiles.
template <unsigned HEIGHT, unsigned WIDTH, unsigned GROUP>
__device__ __forceinline__ void place_tile(Work& work) {
  grouped_raster<HEIGHT, WIDTH, GROUP>(work.tile, work.written_m, work.written_n);
  work.m = moved_inside<HEIGHT>(M, work.written_m);
  work.n = moved_inside<WIDTH>(N, work.written_n);
}

// Tile and part of a block where PARTS blocks share each tile; the rest is yet to be filled in.
template <unsigned PARTS>
__device__ __forceinline__ Work numbered_work(unsigned block) {
  Work work;
  work.tile = block / PARTS;
  work.part = block % PARTS;
  work.parts = PARTS;
  return work;
}

// Gives the part its share of the tile's TILE_STEPS steps, as equal as can be: the first parts have one step more.
template <unsigned TILE_STEPS, unsigned PARTS>
__device__ __forceinline__ void share_steps(Work& work) {
  constexpr unsigned EACH = TILE_STEPS / PARTS, MORE = TILE_STEPS % PARTS;
  work.first_step = work.part * EACH + tw::min(work.part, MORE);
  work.steps = (work.part + 1) * EACH + tw::min(work.part + 1, MORE) - work.first_step;
}
