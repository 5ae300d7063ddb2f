// Arithmetic of pairs of numbers of 16 bits in one register (PTX ISA, "fma"; compute capability 8.0).
#pragma once

// a b + c, rounded once.
template <bool IS_BFLOAT16>
__device__ __forceinline__ unsigned fma_rn_x2(unsigned a, unsigned b, unsigned c) {
  unsigned sum;
  if constexpr (IS_BFLOAT16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  }
  return sum;
}
