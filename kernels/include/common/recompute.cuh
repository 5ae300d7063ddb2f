// Sums that tensor cores made infinite or NaN, computed again by FMAs. Where an operand is split in parts, infinities,
// NaN and numbers of which a part rounds up to infinity all make a sum so; what FP32 arithmetic gives is then found out
// by FP32 arithmetic.
#pragma once
#include "common/product.cuh"

__device__ __forceinline__ bool is_finite(float sum) { return fabsf(sum) <= 3.402823466e38f; }

// The inner product of a row of op(A) and a column of op(B) by FMAs, term after term.
__device__ __forceinline__ float product_by_fma(const float* A, const float* B, unsigned row, unsigned column) {
  const float* a = A + (TRANS_A ? row : static_cast<size_t>(row) * K);
  const float* b = B + (TRANS_B ? static_cast<size_t>(column) * K : column);
  float sum = 0;
#pragma unroll 1
  for (unsigned p = 0; p < K; ++p) {
    sum += *a * *b;
    a += TRANS_A ? M : 1;
    b += TRANS_B ? 1 : N;
  }
  return sum;
}
