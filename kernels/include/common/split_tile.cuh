// A tile whose k is split over several blocks: their sums added up in a fixed order. First over the blocks of a cluster
// in distributed shared memory, each block a share of the tile; then, where there are several clusters, over what each
// of them left in the workspace, by the last to arrive of the blocks with that share (split.cuh). So many blocks do the
// reading, and only clusters leave anything in memory.
#pragma once
#include "common/global_memory.cuh"
#include "common/integers.cuh"
#include "common/split.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared_memory.cuh"

// A thread has HEIGHT x WIDTH sums of a tile, a block BLOCK_THREADS threads. A tile has at most CLUSTERS clusters of
// CLUSTER_BLOCKS blocks.
template <unsigned HEIGHT, unsigned WIDTH, unsigned BLOCK_THREADS, unsigned CLUSTER_BLOCKS, unsigned CLUSTERS>
struct SplitTile {
  static constexpr unsigned ROW_QUADS = WIDTH / QUAD;   // a thread's quads (16 bytes of sums) in one of its rows
  static constexpr unsigned THREAD_QUADS = HEIGHT * ROW_QUADS;
  using Sums = REAL[HEIGHT][WIDTH];

  // Of the thread's sums the quad of that number, counted row by row.
  __device__ static __forceinline__ Pack<QUAD> quad_of(const Sums& sum, unsigned number) {
    Pack<QUAD> quad;
#pragma unroll
    for (unsigned lane = 0; lane < QUAD; ++lane) {
      quad.lane[lane] = sum[number / ROW_QUADS][number % ROW_QUADS * QUAD + lane];
    }
    return quad;
  }

  __device__ static __forceinline__ void accumulate(Pack<QUAD>& total, const Pack<QUAD>& part) {
#pragma unroll
    for (unsigned lane = 0; lane < QUAD; ++lane) total.lane[lane] += part.lane[lane];
  }

  // Adds up the tiles of the `parts` blocks that work on tile number `tile` of `all_tiles`, this one being the
  // `rank`-th, and calls `write(number, total)` once for each quad of the tile, in the thread that has it in `sum` and
  // in one of the blocks. `buffer` is shared memory for a tile, which nobody reads any more. CLUSTER_BLOCKS divides
  // `parts`.
  template <class Write>
  __device__ static __forceinline__ void add(
      const Sums& sum, REAL* buffer, unsigned char* start, unsigned tile, unsigned all_tiles, unsigned rank,
      unsigned parts, Write write) {
    constexpr unsigned SHARE_QUADS = tw::ceil_div(THREAD_QUADS, CLUSTER_BLOCKS);   // of a thread, in one block's share
    constexpr unsigned STRIDE = BLOCK_THREADS * QUAD;   // from a thread's quad to its next, so that neighbours touch
    const unsigned in_cluster = rank % CLUSTER_BLOCKS, cluster = rank / CLUSTER_BLOCKS;
    const unsigned group = tile * CLUSTER_BLOCKS + in_cluster;
    REAL* const sums = CLUSTERS == 1 ? nullptr
        : partial_sums(start, static_cast<size_t>(all_tiles) * CLUSTER_BLOCKS)
            + static_cast<size_t>(group) * (CLUSTERS * SHARE_QUADS * STRIDE) + threadIdx.x * QUAD;
    if constexpr (CLUSTER_BLOCKS > 1) {
      REAL* const mine = buffer + threadIdx.x * QUAD;
#pragma unroll
      for (unsigned number = 0; number < THREAD_QUADS; ++number) {
        store_pack<QUAD>(mine + number * STRIDE, quad_of(sum, number));
      }
      cluster_sync();
      const unsigned from = shared_address(mine);
#pragma unroll 2
      for (unsigned i = 0; i < SHARE_QUADS; ++i) {
        const unsigned number = i * CLUSTER_BLOCKS + in_cluster;
        if (THREAD_QUADS % CLUSTER_BLOCKS != 0 && number >= THREAD_QUADS) break;
        Pack<QUAD> total = {};
#pragma unroll
        for (unsigned block = 0; block < CLUSTER_BLOCKS; ++block) {
          accumulate(total, ld_shared_cluster(mapa(from + number * (STRIDE * REAL_BYTES), block)));
        }
        if (CLUSTERS == 1) write(number, total);
        else store_global<QUAD>(sums + (cluster * SHARE_QUADS + i) * STRIDE, total);
      }
      cluster_arrive_relaxed();   // a block's shared memory ends with it
      cluster_wait();
    } else {
#pragma unroll
      for (unsigned number = 0; number < THREAD_QUADS; ++number) {
        store_global<QUAD>(sums + (cluster * SHARE_QUADS + number) * STRIDE, quad_of(sum, number));
      }
    }
    if constexpr (CLUSTERS > 1) {
      // No more than there can be: to unroll further took the compiler a tenth of its time. Not in the pragma itself,
      // where nvcc expands no macros.
      constexpr int PARTS_AT_ONCE = CLUSTERS < 16 ? CLUSTERS : 16;
      const unsigned clusters = parts / CLUSTER_BLOCKS;
      if (!arrives_last(start, group, clusters)) return;
#pragma unroll 2
      for (unsigned i = 0; i < SHARE_QUADS; ++i) {
        const unsigned number = i * CLUSTER_BLOCKS + in_cluster;
        if (THREAD_QUADS % CLUSTER_BLOCKS != 0 && number >= THREAD_QUADS) break;
        Pack<QUAD> total = {};
#pragma unroll PARTS_AT_ONCE
        for (unsigned part = 0; part < clusters; ++part) {
          accumulate(total, load_from_l2(sums + (part * SHARE_QUADS + i) * STRIDE));
        }
        write(number, total);
      }
    }
  }
};
