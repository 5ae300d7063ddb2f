// The problem: C = alpha op(A) op(B) + beta C, baked in as constants, and where its elements lie.
#ifndef SHAPE_M
#define SHAPE_M 512   // rows of C
#define SHAPE_N 512   // columns of C
#define SHAPE_K 512   // length of each inner product
#endif
#ifndef TRANS_A
#define TRANS_A 0     // 0: A is stored (m, k); 1: as (k, m)
#endif
#ifndef TRANS_B
#define TRANS_B 0     // 0: B is stored (k, n); 1: as (n, k)
#endif
#ifndef BETA_ZERO
#define BETA_ZERO 1   // 1: C is not read, whatever it holds
#endif

// Unsigned: an axis may be 2^31 - 1, and the end of its last tile then lies beyond a signed int.
constexpr unsigned M = SHAPE_M;
constexpr unsigned N = SHAPE_N;
constexpr unsigned K = SHAPE_K;

// How many tiles of `tile` cover `extent`.
__device__ constexpr unsigned tiles(unsigned extent, unsigned tile) { return (extent + tile - 1) / tile; }

// Where element (row, p) of op(A) lies in A.
__device__ __forceinline__ size_t index_a(unsigned row, unsigned p) {
  return TRANS_A ? static_cast<size_t>(p) * M + row : static_cast<size_t>(row) * K + p;
}

// Where element (p, column) of op(B) lies in B.
__device__ __forceinline__ size_t index_b(unsigned p, unsigned column) {
  return TRANS_B ? static_cast<size_t>(column) * K + p : static_cast<size_t>(p) * N + column;
}

// One finished inner product goes to C.
__device__ __forceinline__ void write_c(REAL* C, unsigned row, unsigned column, REAL alpha, REAL product, REAL beta) {
  REAL* target = C + static_cast<size_t>(row) * N + column;
  *target = BETA_ZERO ? alpha * product : alpha * product + beta * *target;
}
