// Weights as numbers of 16 bits, exactly: as the last bits of a number whose others are zero, a multiple of the smallest
// subnormal number, since the subnormal numbers and the smallest others are equally far apart. So eight bits of bfloat16 can
// be used, whose significand has room for seven. The multiplication that takes the zero point off makes multiples of UNIT of
// them, since no factor is large enough for whole numbers; what was added up is divided by UNIT in the end.
#pragma once
#include "hmma/element.cuh"
#include "problem.cuh"

#include "ptx/convert_half.cuh"
#include "ptx/fma_half.cuh"

constexpr float UNIT = IS_BFLOAT16 ? 1.0f / 64 : 1.0f / 512;
constexpr unsigned FACTOR = IS_BFLOAT16 ? 0x7f00u : 0x7800u;   // 2^127 and 2^15, of smallest numbers 2^-133 and 2^-24
[[maybe_unused]] constexpr unsigned HIGHER = IS_BFLOAT16 ? 0x7d00u : 0x6800u;   // 16 times less, for what lies four bits higher
[[maybe_unused]] constexpr unsigned BIAS_OF_8 = IS_BFLOAT16 ? 0xbe00be00u : 0xa400a400u;
[[maybe_unused]] constexpr unsigned BIAS_OF_128 = IS_BFLOAT16 ? 0xc000c000u : 0xb400b400u;

// Subtracts the zero point from two weights.
__device__ __forceinline__ unsigned bias_of(float zero) { return cvt_rn_x2<IS_BFLOAT16>(-UNIT * zero, -UNIT * zero); }

// Two weights of 4 bits, the last of both halves of `bits` or those four bits higher.
template <bool LOW_IS_HIGHER, bool HIGH_IS_HIGHER>
__device__ __forceinline__ unsigned pair_of_nibbles(unsigned bits, unsigned bias) {
  constexpr unsigned MASK = (LOW_IS_HIGHER ? 0xf0u : 0xfu) | (HIGH_IS_HIGHER ? 0xf00000u : 0xf0000u);
  constexpr unsigned FACTORS = (LOW_IS_HIGHER ? HIGHER : FACTOR) | (HIGH_IS_HIGHER ? HIGHER : FACTOR) << 16;
  return fma_rn_x2<IS_BFLOAT16>(bits & MASK, FACTORS, bias);
}

// Two weights of 8 bits, the last of both halves of `bits`, whose first bit is flipped; the other bits are zero.
__device__ __forceinline__ unsigned pair_of_bytes(unsigned bits) {
  return fma_rn_x2<IS_BFLOAT16>(bits, FACTOR * 0x10001u, BIAS_OF_128);
}

// Two weights of a word: terms 2 p and 2 p + 1 of 8 bits; of 4 bits p and p + 4, which one mask brings forth together.
__device__ __forceinline__ unsigned pair_of(unsigned word, unsigned p, float zero) {
#if BITS == 8
  return pair_of_bytes(__byte_perm(word ^ 0x80808080u, 0, 0x4140 + p * 0x202));
#else
  const unsigned bits = word >> p / 2 * 8, bias = ZEROS ? bias_of(zero) : BIAS_OF_8;
  return p % 2 ? pair_of_nibbles<true, true>(bits, bias) : pair_of_nibbles<false, false>(bits, bias);
#endif
}

__device__ __forceinline__ unsigned word_of(const uint4& load, unsigned i) {
  return i == 0 ? load.x : i == 1 ? load.y : i == 2 ? load.z : load.w;
}

// Two of the eight weights of a quad, from a lane's loads of a row.
template <unsigned LOADS>
__device__ __forceinline__ unsigned pair_of(const uint4 (&loads)[LOADS], unsigned quad, unsigned p, float zero) {
#if BITS == 8
  return pair_of(word_of(loads[quad / 2], quad % 2 * 2 + p / 2), p % 2, zero);
#else
  return pair_of(word_of(loads[0], quad), p, zero);
#endif
}

// A quad's terms of X as pairs of weights have them: of 4 bits 0 and 4, 1 and 5 and so forth.
__device__ __forceinline__ uint4 as_pairs(const uint4& x) {
#if BITS == 8
  return x;
#else
  return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
                    __byte_perm(x.y, x.w, 0x7632));
#endif
}
