// The variant `tensor_half_turned_sm90` as a whole: blocks of warpgroups that multiply and one that loads.
#pragma once
#include "turned/store.cuh"

#include "common/global_memory.cuh"
#include "common/split.cuh"
#include "ptx/dependent_launch.cuh"

// Whether a block has one tile at most: the ring is free when that is stored. Of a size known at the launch only it asks then.
#ifdef AT_LAUNCH
[[maybe_unused]] constexpr bool TAKES_ANY_SIZE = true, HAS_ONE_TILE = false;
#else
[[maybe_unused]] constexpr bool TAKES_ANY_SIZE = false, HAS_ONE_TILE = TILES <= BLOCKS * RESIDENT / CLUSTER;
#endif
[[maybe_unused]] constexpr unsigned SUM_BYTES = TILE_M * TILE_N * 4;   // of a tile

__device__ __forceinline__ void multipliers_sync() { asm volatile("bar.sync 7, %0;" ::"n"(MULTIPLYING) : "memory"); }

// Blocks of a cluster have a tile together: each adds up a share of its rows, in a fixed order. The ring's memory becomes that of
// the block's sums.
template <class Epilogue>
__device__ __forceinline__ void add_up(
    const Epilogue& epilogue, const TensorMap& map_c, const float (&sum)[BLOCKS_N][SUMS], const Tile& tile,
    unsigned warpgroup, const Place& place, unsigned ring, unsigned staging) {
  constexpr unsigned OWN = tw::ceil_div(GROUPS, unsigned{SPLIT_K}), QUAD_STRIDE = MULTIPLYING * 16;
  const unsigned mine = ring + threadIdx.x * 16;
  multipliers_sync();   // the ring is read to its end
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
  store_last<OWN, SUM_BYTES>(epilogue, map_c, total, tile.m + first * 8, end - first, tile, warpgroup, ring, staging, turn);
}

// By the warpgroups that multiply, where several clusters have a tile together: each leaves its sums in the workspace, and the
// last to arrive has the sum of all in the end, added up in a fixed order. Whether this block is the last.
__device__ __forceinline__ bool is_last_with_all(
    float (&sum)[BLOCKS_N][SUMS], const Tile& tile, const Place& place, unsigned char* workspace) {
  constexpr unsigned STRIDE = MULTIPLYING * QUAD, TILE_SUMS = BLOCKS_N * GROUPS * STRIDE;
  __shared__ unsigned is_last;
  const unsigned group = tile.number * CLUSTER + place.row + CLUSTER_M * place.column;
  float* const first = partial_sums(workspace, static_cast<size_t>(TILES) * CLUSTER)
      + static_cast<size_t>(group) * (SPLIT_FAR * TILE_SUMS) + threadIdx.x * QUAD;
#pragma unroll
  for (unsigned quad = 0; quad < BLOCKS_N * GROUPS; ++quad) {
    const float* const own = sum[quad / GROUPS] + quad % GROUPS * 4;
    store_global<QUAD>(first + place.portion * TILE_SUMS + quad * STRIDE, Pack<QUAD>{own[0], own[1], own[2], own[3]});
  }
  multipliers_sync();   // the block's writes, before the fence below makes them everybody's
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicInc(reinterpret_cast<unsigned*>(workspace) + group, SPLIT_FAR - 1) == SPLIT_FAR - 1;
    __threadfence();
  }
  multipliers_sync();
  if (is_last == 0) return false;
#pragma unroll
  for (unsigned quad = 0; quad < BLOCKS_N * GROUPS; ++quad) {
    Pack<QUAD> total = {};
#pragma unroll
    for (unsigned portion = 0; portion < SPLIT_FAR; ++portion) {
      const Pack<QUAD> there = load_from_l2(first + portion * TILE_SUMS + quad * STRIDE);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) total.lane[i] += there.lane[i];
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) sum[quad / GROUPS][quad % GROUPS * 4 + i] = total.lane[i];
  }
  return true;
}

// By a warpgroup that multiplies: all that the block has to do.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_tiles(
    const EpilogueOf& epilogue_of, const TensorMap& map_c, Ring ring, const Place& place, unsigned staging,
    unsigned char* workspace) {
  const unsigned warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const unsigned steps = Tile::first_step(place.portion + 1) - Tile::first_step(place.portion);
  staging += warpgroup * (2 * STAGING * PIECE_BYTES);
  float sum[BLOCKS_N][SUMS] = {};
  Tile tile;
  unsigned turn = 0;
  if constexpr (PORTIONS > 1) {
    multiply_steps(sum, ring, warpgroup, place, steps);
    if constexpr (SPLIT_K == 1 && CLUSTER > 1) cluster_arrive();
    tile.find(place);
    const auto epilogue = epilogue_of(tile.matrix);
    if constexpr (SPLIT_K > 1) {
      add_up(epilogue, map_c, sum, tile, warpgroup, place, ring.memory, staging);
    } else if (is_last_with_all(sum, tile, place, workspace)) {
      store_last<GROUPS, 0>(epilogue, map_c, sum, tile.m, GROUPS, tile, warpgroup, ring.memory, staging, turn);
    }
  } else {
#pragma unroll 1
    while (tile.is_valid()) {
      multiply_steps(sum, ring, warpgroup, place, steps);
      Tile here = tile;
      here.find(place);
      tile.advance();
      const auto epilogue = epilogue_of(here.matrix);
      if constexpr (CLUSTER > 1) {
        if (!tile.is_valid()) cluster_arrive();   // it waits for what the block has written, which here is little
      }
      if (HAS_ONE_TILE || (TAKES_ANY_SIZE && !tile.is_valid())) {
        multipliers_sync();
        store_last<GROUPS, 0>(epilogue, map_c, sum, here.m, GROUPS, here, warpgroup, ring.memory, staging, turn);
      } else {
        store_groups<GROUPS, STAGING, true>(epilogue, map_c, sum, here.m, GROUPS, here, warpgroup, staging, turn);
      }
    }
  }
  wait_for_stores_to_read<0>();
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void multiply_turned(
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
  wait_for_launch_before();
  const Place place;
  const Ring ring(start, full);
  if (threadIdx.x < MULTIPLYING) {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_alloc<MULTIPLYING_REGISTERS>();
    multiply_tiles(epilogue_of, map_c, ring, place, start + STAGES * STAGE_BYTES, workspace);
  } else {
    if constexpr (MOVES_REGISTERS) warpgroup_reg_dealloc<LOADING_REGISTERS>();
    if (threadIdx.x == MULTIPLYING) load_tiles(map_a, map_b, ring, place);
    __syncwarp();
    if constexpr (SPLIT_K > 1) cluster_sync();
    if constexpr (CLUSTER > 1) cluster_arrive();
  }
  __syncwarp();
  if constexpr (CLUSTER > 1) cluster_wait();   // until then another block's copies, arrivals and reads may come in
}
