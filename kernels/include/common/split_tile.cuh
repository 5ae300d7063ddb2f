// A tile whose k is split over several blocks, or over groups of a block's warps (slices): their sums added up in a fixed
// order. First over slices and the blocks of a cluster in distributed shared memory, each slice of a block a share of the
// tile; then, where there are several clusters, over what each of them left in the workspace, by the last to arrive of the
// blocks with that share (split.cuh). So many blocks do the reading, and only clusters leave anything in memory.
#pragma once
#include "common/global_memory.cuh"
#include "common/integers.cuh"
#include "common/split.cuh"
#include "ptx/cluster.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/st_async.cuh"

// A thread has HEIGHT x WIDTH sums of a tile. A block has BLOCK_TILES tiles of sums, which make one together, each of
// TILE_THREADS threads. A tile has at most CLUSTERS clusters of CLUSTER_BLOCKS blocks.
template <unsigned HEIGHT, unsigned WIDTH, unsigned TILE_THREADS, unsigned CLUSTER_BLOCKS, unsigned CLUSTERS,
          unsigned BLOCK_TILES = 1, bool IS_PUSHED = false>
struct SplitTile {
  static constexpr unsigned ROW_QUADS = WIDTH / QUAD;   // a thread's quads (16 bytes of sums) in one of its rows
  static constexpr unsigned THREAD_QUADS = HEIGHT * ROW_QUADS;
  static constexpr unsigned SHARES = CLUSTER_BLOCKS * BLOCK_TILES;   // of a tile, one for each of a cluster's tiles of sums
  static constexpr unsigned SHARE_QUADS = tw::ceil_div(THREAD_QUADS, SHARES);   // of a thread
  static constexpr unsigned TILE = TILE_THREADS * QUAD;   // numbers from a thread's quad to its next, of one tile
  using Sums = REAL[HEIGHT][WIDTH];

  // The quad of that number among the thread's sums, counted row by row.
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

  // Leaves the thread's quads where the others of the cluster find them.
  __device__ static __forceinline__ void keep(const Sums& sum, REAL* mine) {
#pragma unroll
    for (unsigned number = 0; number < THREAD_QUADS; ++number) {
      store_pack<QUAD>(mine + number * (BLOCK_TILES * TILE), quad_of(sum, number));
    }
    if constexpr (CLUSTER_BLOCKS > 1) cluster_sync();
    else __syncthreads();
  }

  // The quad so many numbers behind `first` in this block's shared memory, of the block of that rank.
  __device__ static __forceinline__ Pack<QUAD> of_block(const REAL* first, unsigned behind, unsigned rank) {
    if constexpr (CLUSTER_BLOCKS > 1) return ld_shared_cluster(mapa(shared_address(first) + behind * REAL_BYTES, rank));
    else return load_pack<QUAD>(first + behind);
  }

  // With IS_PUSHED this comes first of all: says what will come in at the barrier, and that this block is there.
  __device__ static __forceinline__ void expect(unsigned barrier, unsigned in_cluster) {
    if (threadIdx.x == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      const unsigned own_quads = (THREAD_QUADS + CLUSTER_BLOCKS - 1 - in_cluster) / CLUSTER_BLOCKS;   // of a thread
      mbarrier_expect(barrier, own_quads * (SHARES * TILE * REAL_BYTES));
    }
    cluster_arrive_relaxed();
  }

  // Sends each quad to the block that adds it up, and waits for those that are this block's to add up.
  __device__ static __forceinline__ void push(const Sums& sum, REAL* here, unsigned barrier, unsigned share) {
    cluster_wait();   // all blocks are there
    const unsigned first = shared_address(here);
#pragma unroll
    for (unsigned number = 0; number < THREAD_QUADS; ++number) {
      const unsigned owner = number % SHARES, behind = owner / CLUSTER_BLOCKS * SHARE_QUADS + number / SHARES;
      const unsigned address = first + (behind * SHARES + share) * (TILE * REAL_BYTES);
      st_async(mapa(address, owner % CLUSTER_BLOCKS), mapa(barrier, owner % CLUSTER_BLOCKS), quad_of(sum, number));
    }
    mbarrier_wait_cluster(barrier);
  }

  // Adds up the tiles of the `parts` blocks that work on tile number `tile` of `all_tiles`, this one being the
  // `rank`-th, and calls `write(number, total)` once for each quad of the tile, in a thread that has it in `sum` and
  // in one of the blocks. `buffer` is shared memory for BLOCK_TILES tiles, which nobody reads any more; with IS_PUSHED
  // for as many quads as come in, which nobody reads at all, and `barrier` that of `expect`. CLUSTER_BLOCKS divides
  // `parts`.
  template <class Write>
  __device__ static __forceinline__ void add(
      const Sums& sum, REAL* buffer, unsigned char* start, unsigned tile, unsigned all_tiles, unsigned rank,
      unsigned parts, Write write, unsigned barrier = 0) {
    constexpr unsigned STRIDE = BLOCK_TILES * TILE;   // from a thread's quad to its next
    const unsigned in_cluster = rank % CLUSTER_BLOCKS, cluster = rank / CLUSTER_BLOCKS;
    const unsigned slice = BLOCK_TILES == 1 ? 0 : threadIdx.x / TILE_THREADS, share = slice * CLUSTER_BLOCKS + in_cluster;
    const unsigned group = tile * CLUSTER_BLOCKS + in_cluster;
    REAL* const sums = CLUSTERS == 1 ? nullptr
        : partial_sums(start, static_cast<size_t>(all_tiles) * CLUSTER_BLOCKS)
            + static_cast<size_t>(group) * (CLUSTERS * SHARE_QUADS * STRIDE) + threadIdx.x * QUAD;
    if constexpr (SHARES > 1) {
      REAL* const first = buffer + (BLOCK_TILES == 1 ? threadIdx.x : threadIdx.x % TILE_THREADS) * QUAD;
      if constexpr (IS_PUSHED) push(sum, first, barrier, share);
      else keep(sum, buffer + threadIdx.x * QUAD);
#pragma unroll 2
      for (unsigned i = 0; i < SHARE_QUADS; ++i) {
        const unsigned number = i * SHARES + share;
        if (THREAD_QUADS % SHARES != 0 && number >= THREAD_QUADS) break;
        Pack<QUAD> total = {};
#pragma unroll
        for (unsigned part = 0; part < SHARES; ++part) {
          if constexpr (IS_PUSHED) {
            accumulate(total, load_pack<QUAD>(first + ((slice * SHARE_QUADS + i) * SHARES + part) * TILE));
          } else {
            accumulate(total, of_block(first, number * STRIDE + part % BLOCK_TILES * TILE, part / BLOCK_TILES));
          }
        }
        if (CLUSTERS == 1) write(number, total);
        else store_global<QUAD>(sums + (cluster * SHARE_QUADS + i) * STRIDE, total);
      }
      // A block's shared memory ends with it. It orders memory, since threads outside C leave loads under way.
      if constexpr (CLUSTER_BLOCKS > 1 && !IS_PUSHED) cluster_sync();
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
        const unsigned number = i * SHARES + share;
        if (THREAD_QUADS % SHARES != 0 && number >= THREAD_QUADS) break;
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
