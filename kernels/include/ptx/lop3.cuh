// Two bitwise operations in one instruction (PTX ISA, "lop3"), which the compiler does not always find where two of the
// operands are constants.
#pragma once

// x & mask | set.
__device__ __forceinline__ unsigned and_or(unsigned x, unsigned mask, unsigned set) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(x), "r"(mask), "r"(set));
  return result;
}
