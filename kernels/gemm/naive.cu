// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// A thread an element: it walks a row of op(A) and a column of op(B) and keeps one sum in a register. Threads that are
// neighbours in x compute neighbouring columns, so a warp reads B and writes C in whole lines and shares each element of A.
//   block (BLOCK_X columns, BLOCK_Y rows)
//   grid  (column blocks * row blocks, matrices of the batch): y ends at 65535, and blocks walk through a longer batch
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

constexpr unsigned MOST_MATRICES = 65535;   // of a grid along y

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
gemm(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, Sum beta, Out* __restrict__ C
     SIZE_PARAMETER) {
  constexpr unsigned BLOCKS_N = tw::ceil_div(N, unsigned{BLOCK_X});
  const unsigned row = blockIdx.x / BLOCKS_N * BLOCK_Y + threadIdx.y;
  const unsigned column = blockIdx.x % BLOCKS_N * BLOCK_X + threadIdx.x;
  if (row >= M || column >= N) return;
  unsigned matrix = BATCH > 1 ? blockIdx.y : 0;
  do {
    const REAL* a = A + matrix * STRIDE_A;
    const REAL* b = B + matrix * STRIDE_B;
    Sum sum = 0;
    for (unsigned p = 0; p < K; ++p) sum += Sum(a[index_a(row, p)]) * Sum(b[index_b(p, column)]);
    write_c(C + matrix * STRIDE_C, row, column, alpha, sum, beta);
    matrix += MOST_MATRICES;
  } while (BATCH > MOST_MATRICES && matrix < BATCH);
}
