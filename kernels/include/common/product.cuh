// The product op(A) op(B), M x K times K x N, that a kernel computes or has inside: its sizes and layouts as constants.
// A kernel with other defaults defines them first (linear/problem.cuh).
#pragma once
#include "common/at_launch.cuh"
#include "common/integers.cuh"

#ifndef SHAPE_M
#define SHAPE_M 512   // rows of op(A); size_at_launch() where M_AT_LAUNCH is defined
#define SHAPE_N 512   // columns of op(B)
#define SHAPE_K 512   // length of each inner product
#endif
#ifndef TRANS_A
#define TRANS_A 0     // 0: A is stored (m, k); 1: as (k, m)
#endif
#ifndef TRANS_B
#define TRANS_B 0     // 0: B is stored (k, n); 1: as (n, k)
#endif

#ifndef SHAPE_BATCH
#define SHAPE_BATCH 1   // products of one launch, each with matrices of its own
#endif
// Elements from a row of a matrix, as it is stored, to the next. At least the length of a row.
#if !defined(SHAPE_LDA) && TRANS_A
#define SHAPE_LDA SHAPE_M
#elif !defined(SHAPE_LDA)
#define SHAPE_LDA SHAPE_K
#endif
#ifndef SHAPE_LDB
#define SHAPE_LDB (TRANS_B ? SHAPE_K : SHAPE_N)
#endif
#ifndef SHAPE_LDC
#define SHAPE_LDC SHAPE_N
#endif
// Elements from a matrix of the batch to the next; 0 where all products share an operand.
#ifndef SHAPE_STRIDE_A
#define SHAPE_STRIDE_A (static_cast<size_t>(TRANS_A ? SHAPE_K : SHAPE_M) * SHAPE_LDA)
#endif
#ifndef SHAPE_STRIDE_B
#define SHAPE_STRIDE_B (static_cast<size_t>(TRANS_B ? SHAPE_N : SHAPE_K) * SHAPE_LDB)
#endif
#ifndef SHAPE_STRIDE_C
#define SHAPE_STRIDE_C (static_cast<size_t>(SHAPE_M) * SHAPE_LDC)
#endif

// Unsigned: an axis may be 2^31 - 1, and the end of its last tile then lies beyond a signed int.
#ifdef M_AT_LAUNCH
#define M size_at_launch()
#if TRANS_A
#error "with rows at launch A is not transposed: its leading dimension would vary too"
#endif
#else
constexpr unsigned M = SHAPE_M;
#endif
constexpr unsigned N = SHAPE_N;
constexpr unsigned K = SHAPE_K;
[[maybe_unused]] constexpr unsigned BATCH = SHAPE_BATCH;
[[maybe_unused]] constexpr unsigned LDA = SHAPE_LDA, LDB = SHAPE_LDB, LDC = SHAPE_LDC;
// KNOWN_M is 0 where the launch says it; M_DIVIDES, whether tiles of so many rows leave no rest, as far as the compiler knows.
#ifdef M_AT_LAUNCH
static_assert(BATCH == 1, "with rows at launch there is one matrix");
[[maybe_unused]] constexpr size_t STRIDE_A = 0, STRIDE_B = SHAPE_STRIDE_B, STRIDE_C = 0;
#define KNOWN_M 0
#define M_DIVIDES(tile) false
#else
[[maybe_unused]] constexpr size_t STRIDE_A = SHAPE_STRIDE_A, STRIDE_B = SHAPE_STRIDE_B, STRIDE_C = SHAPE_STRIDE_C;
#define KNOWN_M M
#define M_DIVIDES(tile) (M % (tile) == 0)
#endif

// What divides the length of a stored row, the distance of rows and that of matrices, and 16: the widest vectors that
// never reach across the end of a row start where this many elements divide the column.
__device__ constexpr unsigned row_divisor(unsigned length, unsigned lead, size_t stride) {
  return tw::gcd(tw::gcd(length, lead), tw::gcd(static_cast<unsigned>(stride % 16), 16u));
}
#if TRANS_A
#define ROW_LENGTH_A M
#else
#define ROW_LENGTH_A K
#endif
[[maybe_unused]] constexpr unsigned DIVISOR_A = row_divisor(ROW_LENGTH_A, LDA, STRIDE_A);
[[maybe_unused]] constexpr unsigned DIVISOR_B = row_divisor(TRANS_B ? K : N, LDB, STRIDE_B);
[[maybe_unused]] constexpr unsigned DIVISOR_C = row_divisor(N, LDC, STRIDE_C);

// The matrix of the batch that a block computes where blockIdx.y says so.
__device__ __forceinline__ unsigned matrix_of_block() { return BATCH > 1 ? blockIdx.y : 0; }

// Where element (row, p) of op(A) lies in its matrix.
__device__ __forceinline__ size_t index_a(unsigned row, unsigned p) {
  return TRANS_A ? static_cast<size_t>(p) * LDA + row : static_cast<size_t>(row) * LDA + p;
}

// Where element (p, column) of op(B) lies in its matrix.
__device__ __forceinline__ size_t index_b(unsigned p, unsigned column) {
  return TRANS_B ? static_cast<size_t>(column) * LDB + p : static_cast<size_t>(p) * LDB + column;
}
