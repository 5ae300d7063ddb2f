// Each row of y is the row of x, in ascending order.  x, y: (m, n), row-major.
//
// THREADS threads hold a row in registers, PER_THREAD neighbours each, padded with infinities to a power of two, and
// compare and exchange along Batcher's bitonic network. How far apart two elements are decides how they meet: within a
// thread in its registers, within a warp by a shuffle, else in shared memory, where a thread's elements lie THREADS apart,
// so that neighbouring threads meet in neighbouring banks.
//   block (THREADS, ROWS); grid (m / ROWS), rounded up
//   shared memory, dynamic: a row for each of ROWS, PITCH apart for each of a thread's elements
// Batcher, "Sorting Networks and Their Applications" (AFIPS 1968).
#include "common/integers.cuh"
#include "common/real.cuh"
#ifndef SHAPE_M
#define SHAPE_M 16384   // rows
#define SHAPE_N 1024    // elements of a row
#endif
#ifndef THREADS
#define THREADS 128     // threads of a row
#endif
#ifndef ROWS
#define ROWS 1          // rows of a block
#endif
#ifndef PADDING
#define PADDING 1       // unused elements of shared memory behind every THREADS
#endif

__device__ constexpr unsigned power_of_two_from(unsigned n) {
  unsigned power = 1;
  while (power < n) power *= 2;
  return power;
}

constexpr unsigned M = SHAPE_M, N = SHAPE_N;
constexpr unsigned SORTED = tw::max(power_of_two_from(N), unsigned{THREADS}), PER_THREAD = SORTED / THREADS;
constexpr unsigned PITCH = THREADS + PADDING;

// The smaller or the larger of the two: whichever belongs at place i, whose partner is `distance` away, while runs of
// `size` are being sorted in turn upwards and downwards.
__device__ __forceinline__ REAL kept(REAL mine, REAL other, unsigned i, unsigned distance, unsigned size) {
  const bool keeps_smaller = ((i & distance) == 0) == ((i & size) == 0);
  return (mine < other) == keeps_smaller ? mine : other;
}

// Compares and exchanges with the same place of another thread.
template <class Fetch>
__device__ __forceinline__ void meet(REAL (&mine)[PER_THREAD], unsigned distance, unsigned size, Fetch fetch) {
#pragma unroll
  for (unsigned k = 0; k < PER_THREAD; ++k) {
    mine[k] = kept(mine[k], fetch(k), threadIdx.x * PER_THREAD + k, distance, size);
  }
}

// Compares and exchanges within the thread, from half its elements apart to neighbours, as far as `size` goes.
__device__ __forceinline__ void meet_in_registers(REAL (&mine)[PER_THREAD], unsigned size) {
#pragma unroll
  for (unsigned distance = PER_THREAD / 2; distance > 0; distance /= 2) {
    if (distance >= size) continue;
#pragma unroll
    for (unsigned k = 0; k < PER_THREAD; ++k) {
      if (k & distance) continue;
      const unsigned i = threadIdx.x * PER_THREAD + k;
      const REAL lower = mine[k], upper = mine[k | distance];
      mine[k] = kept(lower, upper, i, distance, size);
      mine[k | distance] = kept(upper, lower, i | distance, distance, size);
    }
  }
}

// All exchanges that sort runs of `size`, once those of half the size are.
__device__ __forceinline__ void merge(REAL (&mine)[PER_THREAD], unsigned size, REAL* shared) {
  unsigned distance = size / 2;
  for (; distance >= 32 * PER_THREAD; distance /= 2) {
    __syncthreads();   // all have read what was there
#pragma unroll
    for (unsigned k = 0; k < PER_THREAD; ++k) shared[k * PITCH + threadIdx.x] = mine[k];
    __syncthreads();
    const REAL* const partner = shared + (threadIdx.x ^ distance / PER_THREAD);
    meet(mine, distance, size, [partner](unsigned k) { return partner[k * PITCH]; });
  }
  for (; distance >= PER_THREAD; distance /= 2) {
    meet(mine, distance, size, [&mine, distance](unsigned k) {
      return __shfl_xor_sync(0xffffffffu, mine[k], static_cast<int>(distance / PER_THREAD));
    });
  }
  meet_in_registers(mine, size);
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS)
bitonic_sort(const REAL* __restrict__ x, REAL* __restrict__ y) {
  extern __shared__ __align__(16) REAL rows[];
  REAL* const shared = rows + threadIdx.y * PER_THREAD * PITCH;
  const unsigned row = blockIdx.x * ROWS + threadIdx.y;
  const size_t start = static_cast<size_t>(row) * N;
  const REAL infinity = __int_as_float(0x7f800000);
  REAL mine[PER_THREAD];
#pragma unroll
  for (unsigned k = 0; k < PER_THREAD; ++k) {   // in which order they come does not matter
    const unsigned i = k * THREADS + threadIdx.x;
    mine[k] = row < M && i < N ? x[start + i] : infinity;
  }
#pragma unroll 1
  for (unsigned size = 2; size <= SORTED; size *= 2) merge(mine, size, shared);
  // To neighbouring threads' turn, so that they write neighbouring elements.
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < PER_THREAD; ++k) shared[k * PITCH + threadIdx.x] = mine[k];
  __syncthreads();
#pragma unroll
  for (unsigned k = 0; k < PER_THREAD; ++k) {
    const unsigned i = k * THREADS + threadIdx.x;
    if (row < M && i < N) y[start + i] = shared[i % PER_THREAD * PITCH + i / PER_THREAD];
  }
}
