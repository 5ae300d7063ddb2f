// The variant `tensor_half_sm90` as a whole: blocks of MULTIPLIERS warpgroups that multiply and one thread that loads, which
// stay for tile after tile, or share one.
#pragma once
#include "ptx/dependent_launch.cuh"
#include "ptx/shared_memory.cuh"
#include "tma/multiply.cuh"
#include "tma/share.cuh"
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
    multiply_steps(sum, ring, warpgroup, place, steps);
    tile.find(place);
    add_up(epilogue_of(tile.matrix), sum, tile, warpgroup, ring.memory, workspace);
  } else {
    staging += threadIdx.x / 32 * (PIECES_HELD * PIECE_BYTES);
    unsigned turn = 0;
#pragma unroll 1
    for (; tile.is_valid(); tile.advance()) {
      multiply_steps(sum, ring, warpgroup, place, STEPS);
      tile.find(place);
      store_tile(epilogue_of(tile.matrix), map_c, sum, tile, warpgroup, staging, turn);
    }
    wait_for_stores_to_read<0>();
  }
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_boxes(
    const EpilogueOf& epilogue_of, const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_c,
    unsigned char* workspace) {
  extern __shared__ unsigned char dynamic[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const unsigned start = (shared_address(dynamic) + 1023) / 1024 * 1024, full = shared_address(barriers);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(map_a);
    prefetch_tensor_map(map_b);
    prefetch_tensor_map(map_c);
    for (unsigned stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + 8 * stage, 1);
      mbarrier_init(full + 8 * (STAGES + stage), 4 * MULTIPLIERS * (CLUSTER_M + CLUSTER_N - 1));
    }
    fence_mbarrier_init();
  }
  if constexpr (CLUSTER_M * CLUSTER_N == 1) __syncthreads();
  else cluster_sync();
  launch_dependents();
  wait_for_launch_before();
  const Place place;
  const Ring ring(start, full);
  if (threadIdx.x < MULTIPLYING) {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_alloc<MULTIPLYING_REGISTERS>();
    multiply_tiles(epilogue_of, map_c, ring, place, start + STAGES * STAGE_BYTES, workspace);
  } else {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_dealloc<LOADING_REGISTERS>();
    if (threadIdx.x == MULTIPLYING) {
      load_tiles(map_a, map_b, ring, place);
    }
    __syncwarp();
    if constexpr (SPLIT_K > 1) attend();
  }
  __syncwarp();
  if constexpr (CLUSTER_M * CLUSTER_N > 1) cluster_sync();   // until then another block's copies and arrivals may come in
}
