// The distributed shared memory of a cluster of blocks (PTX ISA, "mapa", "barrier.cluster"; compute capability 9.0).
#pragma once
#include "common/real.cuh"

// Where `address` of this block lies in the block of that rank.
__device__ __forceinline__ unsigned mapa(unsigned address, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Sixteen bytes of any block's shared memory, by what `mapa` gave.
__device__ __forceinline__ Pack<QUAD> ld_shared_cluster(unsigned address) {
  Pack<QUAD> pack;
#if REAL_BYTES == 4
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(pack.lane[0]), "=f"(pack.lane[1]), "=f"(pack.lane[2]), "=f"(pack.lane[3])
               : "r"(address) : "memory");
#else
  asm volatile("ld.shared::cluster.v2.f64 {%0, %1}, [%2];"
               : "=d"(pack.lane[0]), "=d"(pack.lane[1]) : "r"(address) : "memory");
#endif
  return pack;
}

__device__ __forceinline__ void st_shared_cluster(unsigned address, const uint4& words) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}

// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of the cluster, after which each sees what the others wrote before it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The halves of such a barrier: who has arrived may do something else before it waits, or end.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Orders no memory, so that it does not wait for what the block has written.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
