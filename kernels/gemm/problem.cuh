// The problem: C = alpha op(A) op(B) + beta C, baked in as constants. A, B and C are row-major; op transposes where
// TRANS_A or TRANS_B is 1 (common/product.cuh).
#pragma once
#include "common/product.cuh"
#include "common/real.cuh"

#ifndef BETA_ZERO
#define BETA_ZERO 1   // 1: C is not read, whatever it holds
#endif

// One finished inner product goes to C.
__device__ __forceinline__ void write_c(Out* C, unsigned row, unsigned column, Sum alpha, Sum product, Sum beta) {
  Out* target = C + static_cast<size_t>(row) * LDC + column;
  *target = BETA_ZERO ? alpha * product : alpha * product + beta * *target;
}
