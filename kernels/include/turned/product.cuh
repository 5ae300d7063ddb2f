// The variant `tensor_half_turned_sm90` as a whole: blocks of warpgroups that multiply and one that loads.
#pragma once
#include "turned/store.cuh"

#include "ptx/dependent_launch.cuh"

// Blocks of a cluster have a tile together: each adds up a share of its rows, in a fixed order. The ring's memory becomes that of
// the block's sums.
template <class Epilogue>
__device__ __forceinline__ void add_up(
    const Epilogue& epilogue, const TensorMap& map_c, const float (&sum)[BLOCKS_N][SUMS], const Tile& tile,
    unsigned warpgroup, const Place& place, unsigned ring, unsigned staging) {
  constexpr unsigned OWN = tw::ceil_div(GROUPS, unsigned{SPLIT_K}), QUAD_STRIDE = MULTIPLYING * 16;
  const unsigned mine = ring + threadIdx.x * 16;
  asm volatile("bar.sync 7, %0;" ::"n"(MULTIPLYING) : "memory");   // the ring is read to its end
#pragma unroll
  for (unsigned block = 0; block < BLOCKS_N; ++block) {
#pragma unroll
    for (unsigned group = 0; group < GROUPS; ++group) {
      const float* const quad = sum[block] + group * 4;
      st_shared_v4(mine + (block * GROUPS + group) * QUAD_STRIDE, __float_as_uint(quad[0]), __float_as_uint(quad[1]),
                   __float_as_uint(quad[2]), __float_as_uint(quad[3]));
    }
  }
  cluster_sync();
  const unsigned first = place.part * GROUPS / SPLIT_K, end = (place.part + 1) * GROUPS / SPLIT_K;
  float total[BLOCKS_N][OWN * 4] = {};
#pragma unroll
  for (unsigned block = 0; block < BLOCKS_N; ++block) {
#pragma unroll
    for (unsigned i = 0; i < OWN; ++i) {
      if (first + i >= end) break;
#pragma unroll
      for (unsigned part = 0; part < SPLIT_K; ++part) {
        const unsigned address = mine + (block * GROUPS + first + i) * QUAD_STRIDE;
        const Pack<QUAD> there = ld_shared_cluster(mapa(address, place.rank_of_part(part)));
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) total[block][i * 4 + j] += there.lane[j];
      }
    }
  }
  cluster_arrive();   // a block's shared memory ends with it
  unsigned turn = 0;
  store_groups<OWN>(epilogue, map_c, total, tile.m + first * 8, end - first, tile, warpgroup, staging, turn);
}

// By a warpgroup that multiplies: all that the block has to do.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_tiles(
    const EpilogueOf& epilogue_of, const TensorMap& map_c, Ring ring, const Place& place, unsigned staging) {
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const unsigned steps = Tile::first_step(place.part + 1) - Tile::first_step(place.part);
  staging += warpgroup * (PIECES_HELD * PIECE_BYTES);
  float sum[BLOCKS_N][SUMS] = {};
  Tile tile;
  unsigned turn = 0;
  if constexpr (SPLIT_K > 1) {
    multiply_steps(sum, ring, warpgroup, place, steps);
    tile.find(place);
    add_up(epilogue_of(tile.matrix), map_c, sum, tile, warpgroup, place, ring.memory, staging);
  } else {
#pragma unroll 1
    for (; tile.is_valid(); tile.advance()) {
      multiply_steps(sum, ring, warpgroup, place, steps);
      tile.find(place);
      store_groups<GROUPS>(epilogue_of(tile.matrix), map_c, sum, tile.m, GROUPS, tile, warpgroup, staging, turn);
    }
  }
  wait_for_stores_to_read<0>();
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_turned(
    const EpilogueOf& epilogue_of, const TensorMap& map_a, const TensorMap& map_b, const TensorMap& map_c) {
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
    multiply_tiles(epilogue_of, map_c, ring, place, start + STAGES * STAGE_BYTES);
  } else {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_dealloc<LOADING_REGISTERS>();
    if (threadIdx.x == MULTIPLYING) load_tiles(map_a, map_b, ring, place);
    __syncwarp();
    if constexpr (SPLIT_K > 1) {
      cluster_sync();
      cluster_arrive();
    }
  }
  __syncwarp();
  if constexpr (SPLIT_K > 1) cluster_wait();
  else if constexpr (CLUSTER > 1) cluster_sync();   // until then another block's copies and arrivals may come in
}
