// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// A thread an element: it walks a row of op(A) and a column of op(B) and keeps one sum in a register. Threads that are
// neighbours in x compute neighbouring columns, so a warp reads B and writes C in whole lines and shares each element of A.
//   block (BLOCK_X columns, BLOCK_Y rows)
//   grid  (column blocks * row blocks): one axis, because y and z end at 65535
// The first kernel of every CUDA course (CUDA C++ Programming Guide, "Shared Memory", its version without shared memory).
#include "common/integers.cuh"
#include "common/real.cuh"
#include "problem.cuh"
#ifndef BLOCK_X
#define BLOCK_X 32
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
gemm(REAL alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, REAL beta, REAL* __restrict__ C) {
  constexpr unsigned BLOCKS_N = tw::ceil_div(N, BLOCK_X);
  const unsigned row = blockIdx.x / BLOCKS_N * BLOCK_Y + threadIdx.y;
  const unsigned column = blockIdx.x % BLOCKS_N * BLOCK_X + threadIdx.x;
  if (row >= M || column >= N) return;
  REAL sum = 0;
  for (unsigned p = 0; p < K; ++p) sum += A[index_a(row, p)] * B[index_b(p, column)];
  write_c(C, row, column, alpha, sum, beta);
}
