// Barriers in shared memory (PTX ISA, "mbarrier"; compute capability 8.0, the waiting form 9.0): who arrives does not
// wait. A barrier's phases have parities 0, 1, 0...; waiting for parity p returns once the phase of that parity is
// over. On a fresh barrier, waiting for parity 1 returns at once.
#pragma once

__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After a block's barriers are initialized: makes that known.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival for the warp, whose lanes are all done then.
__device__ __forceinline__ void mbarrier_arrive_warp(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
      "@p bra OVER;\nbra AGAIN;\nOVER:\n}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// Makes ordinary writes and copies to shared memory visible to the asynchronous proxy, by which
// tensor cores read it.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
