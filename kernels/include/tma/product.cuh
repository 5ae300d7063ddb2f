// The variant `tensor_half_sm90` as a whole: operands and results by tensor maps.
#pragma once
#include "tma/block.cuh"
#include "tma/load.cuh"
#include "tma/store.cuh"

// By a warpgroup that multiplies: all that the block has to do. `staging` is behind the ring.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_tiles(
    const EpilogueOf& epilogue_of, const TensorMap& map_c, Ring ring, const Place& place, unsigned staging,
    unsigned char* workspace) {
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const unsigned steps = Tile::first_step(Tile::part() + 1) - Tile::first_step(Tile::part());
  float sum[ROW_BLOCKS][SUMS] = {};
  Tile tile;
  if constexpr (SPLIT_K > 1) {
    multiply_steps(sum, ring, warpgroup, place, steps, Tile::part() + 1 == SPLIT_K);
    tile.find(place);
    add_up(epilogue_of(tile.matrix), sum, tile, warpgroup, ring.memory, workspace);
  } else {
    staging += threadIdx.x / 32 * (PIECES_HELD * PIECE_BYTES);
    unsigned turn = 0;
#pragma unroll 1
    for (; tile.is_valid(); tile.advance()) {
      multiply_steps(sum, ring, warpgroup, place, STEPS, true);
      tile.find(place);
      store_tile(epilogue_of(tile.matrix), map_c, sum, tile, warpgroup, staging, turn);
    }
    wait_for_stores_to_read<0>();
  }
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_boxes(
    const EpilogueOf& epilogue_of, const Half* A, const Half* B, const TensorMap& map_a, const TensorMap& map_b,
    const TensorMap& map_c, unsigned char* workspace) {
  run_block(
      [&] {
        prefetch_tensor_map(map_a);
        prefetch_tensor_map(map_b);
        prefetch_tensor_map(map_c);
      },
      [&](const Ring& ring, const Place& place) { load_tiles(map_a, map_b, A, B, ring, place); },
      [&](const Ring& ring, const Place& place, unsigned staging) {
        multiply_tiles(epilogue_of, map_c, ring, place, staging, workspace);
      });
}
