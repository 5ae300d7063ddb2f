// Barriers of some warps of a block, by number; 0 is that of __syncthreads (PTX ISA, "bar.sync").
#pragma once

template <unsigned COUNT>
__device__ __forceinline__ void named_barrier_sync(unsigned number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(COUNT) : "memory");
}
