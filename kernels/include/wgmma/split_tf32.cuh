// The split of a number for Hopper: x = high + low, of which high high + low high + high low is taken.
//
// The tensor core ignores the low 13 bits of a TF32 operand. So a raw number is its own high part, cut off, and a low
// part is rounded ahead by a multiplication by 1 + 2^-12 * 4/3, which, unlike adding to its bits, keeps a NaN one.
// SMALL_BF16 is how many of the two small products are in BF16, at twice the speed. In units of 2^-24 |a b| the error
// of a product is at most 16 with 0 of them: 8 for low times low, which is left out, and 8 that the rounded low parts
// lose. With 1 it is at most 70, with 2 at most 132; of millions of random products the worst had 52 and 89. Half of
// the most, c being 2, must be below sqrt(k): from k = 1225 and 4356 on (tensor_sm90_space.py).
// common/second_pass.cuh says what becomes of infinities, NaN, and very large or small numbers.
#pragma once
#include "common/second_pass.cuh"
#include "wgmma/parameters.cuh"

__device__ __forceinline__ float cut_to_tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
__device__ __forceinline__ float rounded_ahead(float low) { return low * (1.0f + 0x1.55p-12f); }

// A number of the operand that the tensor cores read from shared memory. Its high part may be itself, unscaled; then
// small ones are noticed.
constexpr bool RAW_IS_HIGH = SMALL_BF16 != 2;
__device__ __forceinline__ TwoParts split_shared(FirstPass& pass, float x) {
  if constexpr (!RAW_IS_HIGH) {
    const TwoParts parts = split_scaled(x);
    return {parts.high, SMALL_BF16 == 2 ? parts.low : rounded_ahead(parts.low), parts.whole};
  }
  pass.smallest.notice(x);
  return {x, rounded_ahead(x - cut_to_tf32(x)), x};
}
__device__ __forceinline__ TwoParts split_shared(SecondPass& pass, float x) { return pass.split(x); }

// A number of the one that goes through registers.
__device__ __forceinline__ TwoParts split_register(FirstPass&, float x) {
  if constexpr (PRODUCTS == 1) return {x, 0, x};
  const TwoParts parts = split_scaled(x);
  return {parts.high, SMALL_BF16 == 0 ? rounded_ahead(parts.low) : parts.low, parts.whole};
}
__device__ __forceinline__ TwoParts split_register(SecondPass& pass, float x) { return pass.split(x); }
