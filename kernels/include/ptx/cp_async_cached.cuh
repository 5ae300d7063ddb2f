// Asynchronous copies to shared memory that go by the L1 cache (PTX ISA, "cp.async"; compute capability 8.0); beside them what
// ptx/cp_async.cuh has.
#pragma once
#include "ptx/cp_async.cuh"

// Sixteen bytes of which the first `bytes`, 0 to 16, are there; the rest becomes zero.
__device__ __forceinline__ void cp_async_cached(unsigned target, const void* source, unsigned bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}
