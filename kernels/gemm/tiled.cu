// C = alpha op(A) op(B) + beta C, row-major; op transposes where TRANS_A or TRANS_B is 1 (problem.cuh has the layouts).
//
// A block computes a square tile of C, a thread an element. The block walks along k in steps of TILE_WIDTH: each thread
// brings one element of A and one of B to shared memory, then every element there is used TILE_WIDTH times. Matrices
// need not be square nor divide into tiles: what lies outside is read as zero and not written.
//   block (TILE_WIDTH columns, TILE_WIDTH rows)
//   grid  (column tiles * row tiles, matrices of the batch)
// CUDA C++ Programming Guide, "Shared Memory"; Kirk and Hwu, Programming Massively Parallel Processors, chapter 5.
#include "common/integers.cuh"
#include "common/real.cuh"
#include "problem.cuh"
#ifndef TILE_WIDTH
#define TILE_WIDTH 16
#endif

extern "C" __global__ void __launch_bounds__(TILE_WIDTH * TILE_WIDTH)
gemm(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ B, Sum beta, Out* __restrict__ C
     SIZE_PARAMETER) {
  // The odd pitch keeps the columns that transposed operands are written along in different banks.
  __shared__ REAL tile_a[TILE_WIDTH][TILE_WIDTH + 1];   // [row][p]
  __shared__ REAL tile_b[TILE_WIDTH][TILE_WIDTH + 1];   // [p][column]
  constexpr unsigned TILES_N = tw::ceil_div(N, unsigned{TILE_WIDTH});
  const unsigned x = threadIdx.x, y = threadIdx.y;
  const unsigned row0 = blockIdx.x / TILES_N * TILE_WIDTH, column0 = blockIdx.x % TILES_N * TILE_WIDTH;
  // x runs along what is contiguous in memory, so that a warp loads whole lines in all four layouts.
  const unsigned row_a = TRANS_A ? x : y, p_a = TRANS_A ? y : x;
  const unsigned p_b = TRANS_B ? x : y, column_b = TRANS_B ? y : x;

  A += matrix_of_block() * STRIDE_A;
  B += matrix_of_block() * STRIDE_B;
  Sum sum = 0;
  for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH) {
    const bool inside_a = row0 + row_a < M && p0 + p_a < K;
    const bool inside_b = column0 + column_b < N && p0 + p_b < K;
    tile_a[row_a][p_a] = inside_a ? A[index_a(row0 + row_a, p0 + p_a)] : REAL(0);
    tile_b[p_b][column_b] = inside_b ? B[index_b(p0 + p_b, column0 + column_b)] : REAL(0);
    __syncthreads();
#pragma unroll
    for (unsigned p = 0; p < TILE_WIDTH; ++p) sum += Sum(tile_a[y][p]) * Sum(tile_b[p][x]);
    __syncthreads();
  }
  C += matrix_of_block() * STRIDE_C;
  if (row0 + y < M && column0 + x < N) write_c(C, row0 + y, column0 + x, alpha, sum, beta);
}
