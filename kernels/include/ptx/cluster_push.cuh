// Writing single numbers to the shared memory of a cluster's blocks (PTX ISA, "st"; compute capability 9.0): who writes waits
// for nothing, and a block may end once it has what is meant for it.
#pragma once
#include "ptx/cluster.cuh"

// To any block's shared memory, by what `mapa` gave.
__device__ __forceinline__ void st_shared_cluster(unsigned address, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
