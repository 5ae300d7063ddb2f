// A tile of several blocks, each of which has the sums of a part of k: added up in the shared memory of their clusters, and
// where there are several of these in the workspace, in a fixed order (common/split_tile.cuh).
#pragma once
#include "common/split_tile.cuh"
#include "tma/store.cuh"

using TileSums = SplitTile<ROW_BLOCKS, SUMS, MULTIPLYING, CLUSTER_K, SPLIT>;

// The quad with that number in TileSums, among a thread's sums row by row. PAIRED, matching sums of both matrices lie
// CLUSTER_K numbers apart: the same block adds up one and then the other.
__device__ constexpr unsigned quad_at(unsigned number) {
  constexpr unsigned PAIRS = TileSums::ROW_QUADS / 2;   // in a row
  const unsigned pair = number / (2 * CLUSTER_K) * CLUSTER_K + number % CLUSTER_K;
  return PAIRED ? pair / PAIRS * (2 * PAIRS) + pair % PAIRS + number / CLUSTER_K % 2 * PAIRS : number;
}
static_assert(!PAIRED || SPLIT_K == 1 || TileSums::THREAD_QUADS % (2 * CLUSTER_K) == 0, "pairs of quads in every block");

// By the warpgroups that multiply. The ring's memory becomes that of the block's sums.
template <class Epilogue>
__device__ __forceinline__ void add_up(
    const Epilogue& epilogue, const float (&sum)[ROW_BLOCKS][SUMS], const Tile& tile, unsigned warpgroup, unsigned ring,
    unsigned char* workspace) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned first_row = tile.m + warpgroup * (64 * ROW_BLOCKS) + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const unsigned first_column = tile.n + lane % 4 * 2;
  Pack<QUAD> gate;
  const auto write = [&](unsigned number, Pack<QUAD> total) {
    const unsigned quad = quad_at(number);
    const unsigned row = first_row + quad / TileSums::ROW_QUADS * 64;
    const unsigned column = first_column + quad % (TileSums::ROW_QUADS / FACTORS) * 8;
    if constexpr (PAIRED) {
      if (number / CLUSTER_K % 2 == 0) {
        gate = total;
        return;
      }
#pragma unroll
      for (unsigned i = 0; i < QUAD; ++i) total.lane[i] = Epilogue::combined(gate.lane[i], total.lane[i]);
    }
#pragma unroll
    for (unsigned below = 0; below < 2; ++below) {
      if (row + 8 * below < M && column < N) {
        epilogue.template write<2>(row + 8 * below, column, Pack<2>{total.lane[2 * below], total.lane[2 * below + 1]});
      }
    }
  };
  float ordered[ROW_BLOCKS][SUMS];
#pragma unroll
  for (unsigned number = 0; number < TileSums::THREAD_QUADS; ++number) {
    const unsigned quad = quad_at(number), to = number % TileSums::ROW_QUADS, from = quad % TileSums::ROW_QUADS;
#pragma unroll
    for (unsigned i = 0; i < QUAD; ++i) {
      ordered[number / TileSums::ROW_QUADS][to * QUAD + i] = sum[quad / TileSums::ROW_QUADS][from * QUAD + i];
    }
  }
  if constexpr (CLUSTER_K > 1) asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLYING) : "memory");   // the ring is read to its end
  TileSums::add(ordered, static_cast<float*>(__cvta_shared_to_generic(ring)), workspace, tile.number, TILES, Tile::part(),
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
