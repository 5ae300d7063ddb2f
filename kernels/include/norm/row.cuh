// Rows of (m, n) matrices normalised: y = x / sqrt(mean of x^2 + eps) w, or with CENTRED
//   y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) w + b.
// With RESIDUAL, x is the sum of X and R as it is stored in S, for the next layer: rounded where the type is a half.
//
// X, R, S, Y: m x n row-major; w, b: n. Sums are made in an order that the launch fixes. Who wants CENTRED or
// RESIDUAL defines it as 1 first.
#pragma once
#include "common/at_launch.cuh"
#include "common/real.cuh"

#ifndef CENTRED
#define CENTRED 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef SHAPE_M
#define SHAPE_M 4096   // rows
#define SHAPE_N 4096   // columns: what is normalised together
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to memory; rows divide into such vectors
#endif

static_assert(SHAPE_N % VECTOR_WIDTH == 0, "rows divide into vectors, so that each starts aligned");
// Unsigned: an axis may be 2^31 - 1, and the last stride over it then ends beyond a signed int.
#ifdef M_AT_LAUNCH
#define M size_at_launch()
#else
[[maybe_unused]] constexpr unsigned M = SHAPE_M;   // a grid of m blocks need not look
#endif
constexpr unsigned N = SHAPE_N;
typedef Pack<VECTOR_WIDTH> Vector;

// The arrays of a launch; those that the kernel does not have are null.
struct Arrays {
  const REAL *X, *R, *w, *b;
  REAL *Y, *S;
};

// The numbers to normalise, in the vector that begins at this element of the matrix.
__device__ __forceinline__ Vector load_summed(const Arrays& arrays, size_t at) {
  Vector x = load_pack<VECTOR_WIDTH>(arrays.X + at);
#if RESIDUAL
  const Vector r = load_pack<VECTOR_WIDTH>(arrays.R + at);
#pragma unroll
  for (unsigned w = 0; w < VECTOR_WIDTH; ++w) x.lane[w] = Sum(x.lane[w]) + Sum(r.lane[w]);
#endif
  return x;
}

// A vector of Y from what is normalised there, of a row with this mean and reciprocal deviation.
__device__ __forceinline__ void write_normalised(
    const Arrays& arrays, size_t at, unsigned column, const Sum (&x)[VECTOR_WIDTH], Sum mean, Sum scale) {
  const Vector w = load_pack<VECTOR_WIDTH>(arrays.w + column);
  Vector y;
#if CENTRED
  const Vector b = load_pack<VECTOR_WIDTH>(arrays.b + column);
#pragma unroll
  for (unsigned i = 0; i < VECTOR_WIDTH; ++i) y.lane[i] = (x[i] - mean) * scale * Sum(w.lane[i]) + Sum(b.lane[i]);
#else
#pragma unroll
  for (unsigned i = 0; i < VECTOR_WIDTH; ++i) y.lane[i] = x[i] * scale * Sum(w.lane[i]);
#endif
  store_pack<VECTOR_WIDTH>(arrays.Y + at, y);
}

// The sum over THREADS neighbouring threads, a power of two, in each of them. `shared` holds a number for each warp of
// the block, and no reduction before has used it: then one barrier is enough. Every thread of the block must call it.
template <unsigned THREADS, unsigned WARPS>
__device__ __forceinline__ Sum team_sum(Sum value, Sum (&shared)[WARPS]) {
#pragma unroll
  for (unsigned distance = (THREADS < 32 ? THREADS : 32) / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if constexpr (THREADS > 32) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    const unsigned first = threadIdx.x / THREADS * (THREADS / 32);
    value = 0;
#pragma unroll
    for (unsigned warp = 0; warp < THREADS / 32; ++warp) value += shared[first + warp];
  }
  return value;
}
