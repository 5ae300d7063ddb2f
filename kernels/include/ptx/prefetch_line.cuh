// A line of memory on its way to the L2 cache alone (PTX ISA, "prefetch").
#pragma once

// What is written there later is seen all the same. Of use only while a launch waits for the one before it.
__device__ __forceinline__ void prefetch_line([[maybe_unused]] const void* address) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
#endif
}
