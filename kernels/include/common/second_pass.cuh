// FP32 numbers as two TF32 parts each, in a first pass over a tile, and in a second one where the first met with numbers
// that it is not made for.
//
// A number's parts are exact from 2^-112 on; below, its last bits are beyond TF32's smallest numbers. So the first pass
// multiplies an operand by 2^13, which makes all bits of every float a TF32 number's, and the sums are divided by it in the
// end. What then becomes infinite or NaN, from about 2^102 on, and infinities and NaN themselves, whose low part is NaN,
// show in the finished sums. Such a tile is computed once more, unscaled, where
//   the high part is cut off instead of rounded, so that the low part has the number's sign, and the low part of a number
//   other than zero is not zero. A product of parts is then infinite or NaN as the product of the numbers is.
// If that pass meets with numbers below 2^-112, a third one multiplies their operand by 2^48. What is left are finite
// numbers so large that parts or sums may overflow: there sums that are infinite or NaN are made anew by FMAs.
#pragma once
#include "common/integers.cuh"
#include "common/product.cuh"

constexpr float LARGEST_FINITE = 3.402823466e38f, FIRST_SCALE = 0x1p13f, TINY_SCALE = 0x1p48f;

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= LARGEST_FINITE; }

// A number as the sum of two TF32 numbers, whose low 13 bits are of no account, and as one to be rounded to BF16.
struct TwoParts {
  float high, low, whole;
};

// The number times FIRST_SCALE: high is that rounded to 11 bits, low the rest of 12. After Veltkamp (Dekker, "A
// floating-point technique for extending the available precision", 1971), with FMAs, which these processors do faster
// than operations on bits: 2^13 + 1 times the number loses 13 bits, and 2^13 times the number is exact.
__device__ __forceinline__ TwoParts split_scaled(float x) {
  const float high = fmaf(x, FIRST_SCALE * -8192.0f, x * (FIRST_SCALE * 8193.0f));
  return {high, fmaf(x, FIRST_SCALE, -high), high};
}

// The smallest magnitude other than zero, as twice its bits less 1, since zero then comes last.
struct Smallest {
  unsigned least = ~0u;
  __device__ __forceinline__ void notice(float x) { least = tw::min(least, 2 * __float_as_uint(x) - 1); }
  __device__ __forceinline__ bool is_tiny() const { return least < 2 * 0x07800000u - 1; }   // below 2^-112
};

struct FirstPass {
  static constexpr bool IS_FIRST = true;
  Smallest smallest;   // of what is not scaled
};

// How a later pass splits numbers of one operand, and what it has met with.
struct SecondPass {
  static constexpr bool IS_FIRST = false;
  float scale, largest = 0;   // the largest finite number, scaled
  Smallest smallest;

  __device__ __forceinline__ explicit SecondPass(bool is_tiny) : scale(is_tiny ? TINY_SCALE : 1.0f) {}

  __device__ __forceinline__ TwoParts split(float x) {
    smallest.notice(x);
    const float whole = x * scale, high = __uint_as_float(__float_as_uint(whole) & 0xffffe000u);
    // The addend makes up for what the tensor core cuts off of the low part, on average.
    const float low = fmaf(whole, 0x1.56p-23f, whole - high);
    const bool is_usual = is_finite(whole);
    if (is_finite(x)) largest = fmaxf(largest, fabsf(whole));
    return {high, is_usual ? low : whole, whole};
  }
};

// Whether no part and no sum of at most K products of two such operands overflows, whose largest numbers these are.
__device__ __forceinline__ bool cannot_overflow(float largest_a, float largest_b) {
  return largest_a < 0x1p126f && largest_b < 0x1p126f && largest_a * largest_b < 0x1p125f / static_cast<float>(K);
}

// The inner product by FMAs, term after term, of a row of op(A) and a column of op(B) over k from `first` to `end`.
#ifdef PATCHES
__device__ __forceinline__ float product_by_fma(
    const float* X, const float* W, unsigned row, unsigned column, unsigned first, unsigned end) {
  float sum = 0;
#pragma unroll 1
  for (unsigned p = first; p < end; ++p) sum += patch_element(X, row, p) * filter_element(W, p, column);
  return sum;
}
#else
__device__ __forceinline__ float product_by_fma(
    const float* A, const float* B, unsigned row, unsigned column, unsigned first, unsigned end) {
  const float* a = A + index_a(row, first);
  const float* b = B + index_b(first, column);
  float sum = 0;
#pragma unroll 1
  for (unsigned p = first; p < end; ++p) {
    sum += *a * *b;
    a += TRANS_A ? LDA : 1;
    b += TRANS_B ? 1 : LDB;
  }
  return sum;
}
#endif
