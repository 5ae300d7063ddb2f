// Writing to the shared memory of a cluster's blocks, with its barrier in two halves (PTX ISA, "st", "barrier.cluster";
// compute capability 9.0): who writes waits for nothing, and a block may end once it has what is meant for it.
#pragma once
#include "ptx/cluster.cuh"

// To any block's shared memory, by what `mapa` gave.
__device__ __forceinline__ void st_shared_cluster(unsigned address, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

// A barrier of all threads of the cluster: behind its wait each sees what the others wrote before they arrived.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
