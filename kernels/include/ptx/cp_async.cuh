// Asynchronous copies from global to shared memory (PTX ISA, "cp.async"; compute capability 8.0). Targets are addresses
// in shared memory (shared_memory.cuh).
#pragma once

// Starts a copy of BYTES (4, 8 or 16) neighbours, INTO and FROM bytes behind the two addresses. Constants, because only
// those end up inside the instruction. Sixteen bytes bypass the L1 cache.
template <unsigned BYTES, unsigned INTO, long long FROM>
__device__ __forceinline__ void cp_async(unsigned target, const void* source) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(FROM));
  } else {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %3], %4;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(FROM), "n"(BYTES));
  }
}

// The same where `inside`, zeros where not. Nothing is read then, wherever `source` points: no register of its own.
template <unsigned BYTES, unsigned INTO, long long FROM = 0>
__device__ __forceinline__ void cp_async_zfill(unsigned target, const void* source, bool inside) {
  const unsigned bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %4], 16, %3;"
                 ::"r"(target), "l"(source), "n"(INTO), "r"(bytes), "n"(FROM));
  } else {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %5], %3, %4;"
                 ::"r"(target), "l"(source), "n"(INTO), "n"(BYTES), "r"(bytes), "n"(FROM));
  }
}

// Sixteen bytes of which the first `bytes`, 0 to 16, are there; the rest becomes zero.
__device__ __forceinline__ void cp_async_zfill_16(unsigned target, const void* source, unsigned bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes));
}

// Closes the group of copies that the thread has started since the last call.
__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of the thread's youngest groups are under way.
template <unsigned PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The thread arrives at the barrier (mbarrier.cuh) when all copies that it has started are complete.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
