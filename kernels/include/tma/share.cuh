// A tile of several blocks, each of which has the sums of a part of k: added up in the shared memory of their clusters, and
// where there are several of these in the workspace, in a fixed order (common/split_tile.cuh).
#pragma once
#include "common/split_tile.cuh"
#include "tma/store.cuh"

using TileSums = SplitTile<ROW_BLOCKS, SUMS, MULTIPLYING, CLUSTER_K, SPLIT>;

// By the warpgroups that multiply. The ring's memory becomes that of the block's sums.
template <class Epilogue>
__device__ __forceinline__ void add_up(
    const Epilogue& epilogue, const float (&sum)[ROW_BLOCKS][SUMS], const Tile& tile, unsigned warpgroup, unsigned ring,
    unsigned char* workspace) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned first_row = tile.m + warpgroup * (64 * ROW_BLOCKS) + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const unsigned first_column = tile.n + lane % 4 * 2;
  const auto write = [&](unsigned quad, const Pack<QUAD>& total) {
    const unsigned row = first_row + quad / TileSums::ROW_QUADS * 64;
    const unsigned column = first_column + quad % TileSums::ROW_QUADS * 8;
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      if (row + 8 * below < M && column < N) {
        epilogue.template write<2>(row + 8 * below, column, Pack<2>{total.lane[2 * below], total.lane[2 * below + 1]});
      }
    }
  };
  if constexpr (CLUSTER_K > 1) asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLYING) : "memory");   // the ring is read to its end
  TileSums::add(sum, static_cast<float*>(__cvta_shared_to_generic(ring)), workspace, tile.number, TILES, Tile::part(),
                SPLIT_K, write);
}

// By the other warps meanwhile: the barriers of whole blocks and clusters in `add`.
__device__ __forceinline__ void attend() {
  if constexpr (CLUSTER_K > 1) {
    cluster_sync();
    cluster_sync();
  }
  if constexpr (SPLIT > 1) {
    __syncthreads();
    __syncthreads();
  }
}
