// Weights as whole numbers of 16 bits, exactly: they are the last bits of a significand, from which a constant is taken off.
// Kim et al., "Who Says Elephants Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production" (2022).
#pragma once
#include "hmma/element.cuh"
#include "problem.cuh"

#include "ptx/convert_half.cuh"
#include "ptx/fma_half.cuh"
#include "ptx/lop3.cuh"

// Two weights of a word as whole numbers of 16 bits, their zero point taken off: terms 2 p and 2 p + 1 of 8 bits; of 4 bits
// p and p + 4, which one mask brings forth together.
__device__ __forceinline__ unsigned pair_of(unsigned word, unsigned p, float zero) {
  constexpr unsigned ONE = IS_BFLOAT16 ? 0x3f803f80u : 0x3c003c00u;
#if BITS == 8
  // Behind 0x43 a byte's lower seven bits are what bfloat16 has beyond 128, and the eighth doubles that; behind 0x64 all of
  // them are what float16 has beyond 1024.
  constexpr unsigned BEFORE = IS_BFLOAT16 ? 0x43 : 0x64;
  const unsigned raised = __byte_perm(IS_BFLOAT16 ? word : word ^ 0x80808080u, BEFORE, 0x4140 + p * 0x202);
  if (!IS_BFLOAT16) return fma_rn_x2<IS_BFLOAT16>(raised, ONE, 0xe480e480u);   // less 1152
  return fma_rn_x2<IS_BFLOAT16>(raised & 0xff7fff7fu, ONE, and_or(raised, 0x00800080u, 0xc300c300u));
#else
  const bool is_high = !IS_BFLOAT16 && p % 2;   // float16 has room for a number that lies four bits higher
  const unsigned raised = and_or(
      word >> (is_high ? p / 2 * 8 : p * 4), is_high ? 0x00f000f0u : 0x000f000fu, IS_BFLOAT16 ? 0x43004300u : 0x64006400u);
  const float bias = -((IS_BFLOAT16 ? 128.0f : is_high ? 64.0f : 1024.0f) + zero);
  const unsigned EIGHT = IS_BFLOAT16 ? 0xc308c308u : is_high ? 0xd480d480u : 0xe408e408u;   // the bias of zero point 8
  return fma_rn_x2<IS_BFLOAT16>(raised, is_high ? 0x2c002c00u : ONE, ZEROS ? cvt_rn_x2<IS_BFLOAT16>(bias, bias) : EIGHT);
#endif
}

__device__ __forceinline__ unsigned word_of(const uint4& load, unsigned i) {
  return i == 0 ? load.x : i == 1 ? load.y : i == 2 ? load.z : load.w;
}
