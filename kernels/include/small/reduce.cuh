// Sums of a tile that a block's warpgroups and a cluster's blocks have made of their terms, added up in a fixed order: first
// in the block, where each warpgroup takes a share of the quads, then each block takes a share of the threads'.
#pragma once
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/st_async.cuh"
#include "small/work.cuh"

constexpr unsigned SHARE = QUADS / SLICES, OWNED_THREADS = GROUP_THREADS / SPLIT_K;

// Comes first of all where blocks form clusters: says what will come in at the barrier, and that this block is there.
__device__ __forceinline__ void expect_sums(unsigned barrier) {
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_expect(barrier, (SPLIT_K - 1) * SHARE * SLICES * OWNED_THREADS * 16);
  }
  cluster_arrive_relaxed();
}

__device__ __forceinline__ Pack<QUAD> quad_of(const Sums& sum, unsigned number) {
  const float* s = &sum[number / 4][number % 4 * QUAD];
  return {s[0], s[1], s[2], s[3]};
}
__device__ __forceinline__ Pack<QUAD> added(const Pack<QUAD>& a, const Pack<QUAD>& b) {
  return {a.lane[0] + b.lane[0], a.lane[1] + b.lane[1], a.lane[2] + b.lane[2], a.lane[3] + b.lane[3]};
}

// Sends the totals of threads that other blocks own to them, and adds to those of this block's what came; false in a thread
// that another block owns. A thread of a slice has the same place in all blocks.
__device__ __forceinline__ bool exchange(Pack<QUAD> (&total)[SHARE], REAL* incoming, unsigned barrier, const Place& place) {
  constexpr unsigned ALL = SLICES * OWNED_THREADS * QUAD;   // from a quad of the owned threads to their next
  const unsigned thread = threadIdx.x % GROUP_THREADS, owner = thread / OWNED_THREADS, rank = blockIdx.x % SPLIT_K;
  REAL* const slot = incoming + (place.slice * OWNED_THREADS + thread % OWNED_THREADS) * QUAD;
  cluster_wait();   // all blocks are there
  if (owner != rank) {
    const unsigned to = mapa(shared_address(slot + rank * (SHARE * ALL)), owner), at = mapa(barrier, owner);
#pragma unroll
    for (unsigned i = 0; i < SHARE; ++i) st_async(to + i * (ALL * REAL_BYTES), at, total[i]);
    return false;
  }
  mbarrier_wait_cluster(barrier);
#pragma unroll
  for (unsigned i = 0; i < SHARE; ++i) {
    Pack<QUAD> all = {};
#pragma unroll
    for (unsigned other = 0; other < SPLIT_K; ++other) {
      all = added(all, other == rank ? total[i] : load_pack<QUAD>(slot + (other * SHARE + i) * ALL));
    }
    total[i] = all;
  }
  return true;
}

// Calls `write(number, total)` for each quad of the tile, by one thread. `here` is room for the sums of all warpgroups, which
// nobody reads any more, `incoming` for those of other blocks. Every thread must call it.
template <class Write>
__device__ __forceinline__ void add_up(
    const Sums& sum, REAL* here, REAL* incoming, unsigned barrier, const Place& place, Write write) {
  Pack<QUAD> total[SHARE];
  if constexpr (SLICES > 1) {
    constexpr unsigned TILE = GROUP_THREADS * QUAD;   // from a thread's quad to its next
    REAL* const mine = here + threadIdx.x % GROUP_THREADS * QUAD;
#pragma unroll
    for (unsigned number = 0; number < QUADS; ++number) {
      store_pack<QUAD>(mine + (place.slice * QUADS + number) * TILE, quad_of(sum, number));
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < SHARE; ++i) {
      total[i] = load_pack<QUAD>(mine + (place.slice * SHARE + i) * TILE);
#pragma unroll
      for (unsigned slice = 1; slice < SLICES; ++slice) {
        total[i] = added(total[i], load_pack<QUAD>(mine + (slice * QUADS + place.slice * SHARE + i) * TILE));
      }
    }
  } else {
#pragma unroll
    for (unsigned i = 0; i < SHARE; ++i) total[i] = quad_of(sum, i);
  }
  if constexpr (SPLIT_K > 1) {
    if (!exchange(total, incoming, barrier, place)) return;
  }
#pragma unroll
  for (unsigned i = 0; i < SHARE; ++i) write(place.slice * SHARE + i, total[i]);
}
