// The problem: C = alpha op(A) op(B) + beta C, baked in as constants. A, B and C are row-major; op transposes where
// TRANS_A or TRANS_B is 1 (common/product.cuh).
#pragma once
#include "common/product.cuh"
#include "common/real.cuh"

#ifndef BETA_ZERO
#define BETA_ZERO 1   // 1: C is not read, whatever it holds
#endif

// One finished inner product goes to C.
__device__ __forceinline__ void write_c(REAL* C, unsigned row, unsigned column, REAL alpha, REAL product, REAL beta) {
  REAL* target = C + static_cast<size_t>(row) * N + column;
  *target = BETA_ZERO ? alpha * product : alpha * product + beta * *target;
}
