// A float as the sum of two TF32 parts: high is x rounded to 11 bits, low is x - high, which is exact and has 12 bits,
// one more than the tensor core reads. The product of two floats is then high high + (high low + low high) but for at
// most 2^-22 of it (low low) and twice 2^-23 (the last bit of each low part): 8 units of 2^-24, which sqrt(k) covers
// from k = 16 on. With the two small products in BF16, each number of which loses up to 2^-8, it is 2^-17 and 2^-22: 132
// units, which 2 sqrt(k), the bound, covers from k = 4356 on.
// Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022). They scale the low part, because FP16 has few exponents; TF32 and BF16 have as many as float.
#pragma once
#include "common/second_pass.cuh"
#include "mma/work.cuh"
#include "ptx/convert.cuh"
#include "ptx/mma_sync.cuh"

// With PRODUCTS 1 x as TF32, its low 13 bits being of no account, within 0.7 units of the last place and without bias:
// what the factor adds is on average the half unit that the tensor core cuts off; NaN stays NaN, and the largest numbers
// become infinite.
__device__ __forceinline__ TwoParts split(FirstPass&, float x) {
  if (PRODUCTS == 1) return {x * 1.00033875f, 0, x};   // 1 + 0.5 / 1.44 2^-10, 1.44 being a usual significand
  return split_scaled(x);
}
__device__ __forceinline__ TwoParts split(SecondPass& pass, float x) { return pass.split(x); }

// Four terms of LINES rows of a or of a column of b, as two products of 8 TF32 terms and one of 16 BF16 terms take
// them.
template <unsigned LINES>
struct SplitTerms {
  unsigned high[2][2 * LINES];
  unsigned low[SMALL_BF16 ? 1 : 2][2 * LINES];
  unsigned coarse[2 * LINES];   // BF16 of the whole, for the small products

  template <class Pass>
  __device__ __forceinline__ void split(Pass& pass, unsigned line, const float (&x)[4]) {
#pragma unroll
    for (unsigned pair = 0; pair < 2; ++pair) {
      TwoParts parts[2];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        parts[i] = ::split(pass, x[2 * pair + i]);
        high[pair][i * LINES + line] = __float_as_uint(parts[i].high);
        if (!SMALL_BF16) low[SMALL_BF16 ? 0 : pair][i * LINES + line] = __float_as_uint(parts[i].low);
      }
      if (SMALL_BF16) {
        low[0][pair * LINES + line] = cvt_rn_bf16x2(parts[0].low, parts[1].low);
        coarse[pair * LINES + line] = cvt_rn_bf16x2(parts[0].whole, parts[1].whole);
      }
    }
  }
};

// The number of small products of 16 terms, and sum += one of them. Where few terms leave little room in the bound, low
// low is one too; then a product is off by 4 units.
constexpr unsigned SMALL_PRODUCTS = SMALL_BF16 ? 2 : K < 64 ? 6 : 4;
__device__ __forceinline__ void multiply_small(
    float (&sum)[4], unsigned number, const SplitTerms<2>& a, const SplitTerms<1>& b) {
  if (SMALL_BF16) {
    if (number == 0) mma_m16n8k16_bf16(sum, a.low[0], b.coarse);
    else mma_m16n8k16_bf16(sum, a.coarse, b.low[0]);
  } else {
    const unsigned pair = SMALL_BF16 ? 0 : number % 2;
    if (number / 2 == SMALL_PRODUCTS / 2 - 1) mma_m16n8k8_tf32(sum, a.high[pair], b.low[pair]);
    else if (number / 2 == SMALL_PRODUCTS / 2 - 2) mma_m16n8k8_tf32(sum, a.low[pair], b.high[pair]);
    else mma_m16n8k8_tf32(sum, a.low[pair], b.low[pair]);
  }
}
