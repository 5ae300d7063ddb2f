// A line of global memory on its way to the L2 cache (PTX ISA, "prefetch"; compute capability 8.0).
#pragma once

// Fetches the line that the address lies in.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}
