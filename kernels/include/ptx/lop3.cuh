// Two bitwise operations in one instruction (PTX ISA, "lop3"), which the compiler does not always find where two of the
// operands are constants.
#pragma once

// x & mask ^ flip.
__device__ __forceinline__ unsigned and_xor(unsigned x, unsigned mask, unsigned flip) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(x), "r"(mask), "r"(flip));
  return result;
}
