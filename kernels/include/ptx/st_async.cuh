// Stores to the shared memory of a cluster's blocks that arrive at a barrier there (PTX ISA, "st.async"; compute capability
// 9.0): who stores waits for nothing, and may end. A barrier of the whole cluster costs some 1000 cycles where it orders
// memory, because it waits for all that the block has written anywhere (H200).
#pragma once
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

// Sixteen bytes, to an address and a barrier of the same block, both as `mapa` gave them.
__device__ __forceinline__ void st_async(unsigned address, unsigned barrier, const Pack<QUAD>& pack) {
#if REAL_BYTES == 4
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(address), "f"(pack.lane[0]), "f"(pack.lane[1]), "f"(pack.lane[2]), "f"(pack.lane[3]), "r"(barrier)
               : "memory");
#else
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];"
               ::"r"(address), "d"(pack.lane[0]), "d"(pack.lane[1]), "r"(barrier) : "memory");
#endif
}

// The only arrival of a barrier's phase, which is over when so many bytes have come.
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the first phase, and sees what blocks of the cluster stored.
__device__ __forceinline__ void mbarrier_wait_cluster(unsigned barrier) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
      "@p bra OVER;\nbra AGAIN;\nOVER:\n}\n" ::"r"(barrier) : "memory");
}
