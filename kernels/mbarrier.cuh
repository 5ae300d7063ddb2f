// Barriers in shared memory (PTX ISA, "mbarrier"; compute capability 8.0, the waiting form 9.0): who arrives does not
// wait. A barrier's phases have parities 0, 1, 0...; waiting for parity p returns once the phase of that parity is
// over. On a fresh barrier, waiting for parity 1 returns at once.

__device__ __forceinline__ void initialize_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After a block's barriers are initialized: makes that known.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival for the warp, whose lanes are all done then.
__device__ __forceinline__ void arrive_as_warp(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

// The thread arrives when all copies that it has started are complete (PTX ISA, "cp.async.mbarrier.arrive").
__device__ __forceinline__ void arrive_with_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
      "@p bra OVER;\nbra AGAIN;\nOVER:\n}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// Waits for all threads of this warpgroup, which is the block's `warpgroup`-th.
__device__ __forceinline__ void synchronize_warpgroup(unsigned warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");   // 0 is that of __syncthreads
}

// What ordinary instructions and copies wrote to shared memory becomes visible to the tensor cores' reads.
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A place in the ring of STAGES buffers, with the parity of the turn around it.
struct RingPlace {
  unsigned stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};
