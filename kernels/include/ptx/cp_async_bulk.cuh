// Bulk copies that complete at barriers of this block or of a whole cluster (PTX ISA, "cp.async.bulk", "mbarrier";
// compute capability 9.0).
#pragma once

// One arrival, and the phase also waits for so many bytes of copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival at the barrier of the block with that rank in the cluster. Its release is the block's own: of what was
// read here nothing needs to be seen there, and a cluster's release costs a fence (gemm at 4096 cubed with CLUSTER=2 and
// TILE_N=128 on an H200: 0.93 ms with it, 0.60 without).
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(rank) : "memory");
}

// Copies contiguous bytes, a multiple of 16, to this block's shared memory; they count at `barrier`.
__device__ __forceinline__ void cp_async_bulk(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

// The same to each of the first `blocks` blocks of the cluster, at the same address and barrier of each.
__device__ __forceinline__ void cp_async_bulk_multicast(
    unsigned target, const void* source, unsigned bytes, unsigned barrier, unsigned blocks) {
  const unsigned short mask = static_cast<unsigned short>((1u << blocks) - 1);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      ::"r"(target), "l"(source), "r"(bytes), "r"(barrier), "h"(mask) : "memory");
}

// Makes ordinary writes to global memory visible to such copies: called by who wrote, and by who copies.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
