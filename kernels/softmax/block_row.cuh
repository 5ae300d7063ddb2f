// A block and its row: the walk over it in vectors, and reductions over the block.
#pragma once
#include "common/real.cuh"
#include "problem.cuh"

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to memory; rows divide into such vectors
#endif
#ifndef UNROLL
#define UNROLL 1         // steps of the walk whose loads are in flight together
#endif

static_assert(N % VECTOR_WIDTH == 0, "rows divide into vectors, so that each starts aligned");
constexpr unsigned WARPS = BLOCK / 32;
constexpr unsigned STEP = BLOCK * VECTOR_WIDTH;   // elements that the block passes at once
constexpr unsigned STEPS_TOGETHER = UNROLL;       // nvcc expands no macro in a pragma
typedef Pack<VECTOR_WIDTH> Vector;

// Over the block, in every thread; `shared` holds a number a warp. Every thread must call them, with an array that no
// reduction before it used: then one barrier is enough.
__device__ __forceinline__ Sum block_max(Sum value, Sum (&shared)[WARPS]) {
  const unsigned lane = threadIdx.x % 32;
  value = lanes_max<32>(value);
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return lanes_max<32>(lane < WARPS ? shared[lane] : LOWEST);
}
__device__ __forceinline__ Sum block_sum(Sum value, Sum (&shared)[WARPS]) {
  const unsigned lane = threadIdx.x % 32;
  value = lanes_sum<32>(value);
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return lanes_sum<32>(lane < WARPS ? shared[lane] : Sum(0));
}

// The last pass: the row's probabilities, given its largest element and the sum of exp(x - highest).
__device__ __forceinline__ void write_row(const REAL* x, REAL* y, Sum highest, Sum sum) {
  const Sum scale = Sum(1) / sum;
#pragma unroll STEPS_TOGETHER
  for (unsigned j = threadIdx.x * VECTOR_WIDTH; j < N; j += STEP) {
    Vector vector = load_pack<VECTOR_WIDTH>(x + j);
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) vector.lane[w] = exp(Sum(vector.lane[w]) - highest) * scale;
    store_pack<VECTOR_WIDTH>(y + j, vector);
  }
}
