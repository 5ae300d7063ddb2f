// The product op(A) op(B), M x K times K x N, that a kernel computes or has inside: its sizes and layouts as constants.
// A kernel with other defaults defines them first (linear/problem.cuh).
#pragma once

#ifndef SHAPE_M
#define SHAPE_M 512   // rows of op(A)
#define SHAPE_N 512   // columns of op(B)
#define SHAPE_K 512   // length of each inner product
#endif
#ifndef TRANS_A
#define TRANS_A 0     // 0: A is stored (m, k); 1: as (k, m)
#endif
#ifndef TRANS_B
#define TRANS_B 0     // 0: B is stored (k, n); 1: as (n, k)
#endif

// Unsigned: an axis may be 2^31 - 1, and the end of its last tile then lies beyond a signed int.
constexpr unsigned M = SHAPE_M;
constexpr unsigned N = SHAPE_N;
constexpr unsigned K = SHAPE_K;

// Where element (row, p) of op(A) lies in A.
__device__ __forceinline__ size_t index_a(unsigned row, unsigned p) {
  return TRANS_A ? static_cast<size_t>(p) * M + row : static_cast<size_t>(row) * K + p;
}

// Where element (p, column) of op(B) lies in B.
__device__ __forceinline__ size_t index_b(unsigned p, unsigned column) {
  return TRANS_B ? static_cast<size_t>(column) * K + p : static_cast<size_t>(p) * N + column;
}
