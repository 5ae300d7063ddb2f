// y = alpha A x + beta y.  A: (m, n) row-major, x: (n), y: (m).
//
// Vector loads with several in flight, to keep the memory system full. WARPS_PER_ROW warps take a row, a block takes
// ROWS_PER_BLOCK rows. Where n does not divide into vectors, rows start anywhere: each row is cut into a head that ends
// at the first aligned address, whole vectors, and a tail. So nothing outside A is read and no padding is asked for.
// x is read in vectors as well where head and alignment of x agree (always when n divides), else element by element: it
// comes from the caches, A from memory, and A decides the time.
//   block (32 * WARPS_PER_ROW * ROWS_PER_BLOCK), grid (ceil(m / ROWS_PER_BLOCK))
// Vector loads: Luitjens, "CUDA Pro Tip: Increase Performance with Vectorized Memory Access" (NVIDIA, 2013).
#include "common/global_memory.cuh"
#include "common/real.cuh"
#include "common/reduction.cuh"
#include "problem.cuh"
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4
#endif
#ifndef WARPS_PER_ROW
#define WARPS_PER_ROW 4
#endif
#ifndef ROWS_PER_BLOCK
#define ROWS_PER_BLOCK 1
#endif
#ifndef UNROLL
#define UNROLL 4   // vectors of A that a thread has in flight
#endif

constexpr unsigned ROW_THREADS = 32 * WARPS_PER_ROW;
typedef Pack<VECTOR_WIDTH> Vector;

// How many elements lie before the first address at or after `start` that a Vector may be read from.
__device__ __forceinline__ unsigned misalignment(const REAL* start) {
  constexpr size_t ALIGNED = alignof(Vector) / REAL_BYTES;
  return static_cast<unsigned>((ALIGNED - reinterpret_cast<size_t>(start) / REAL_BYTES % ALIGNED) % ALIGNED);
}

// Adds the products of one vector to a thread's partial sums, one sum per place in the vector.
template <bool X_ALIGNED>
__device__ __forceinline__ void add_products(Sum (&sum)[VECTOR_WIDTH], const Vector& a, const REAL* x) {
  Vector factor;
  if constexpr (X_ALIGNED) factor = load_pack<VECTOR_WIDTH>(x);
#pragma unroll
  for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum[w] += Sum(a.lane[w]) * Sum(X_ALIGNED ? factor.lane[w] : x[w]);
}

// A thread's part of the product of `vectors` whole vectors: of each ROW_THREADS, the one at `thread`.
template <bool X_ALIGNED>
__device__ __forceinline__ void walk(
    Sum (&sum)[VECTOR_WIDTH], const REAL* a, const REAL* x, unsigned vectors, unsigned thread) {
  unsigned v = thread;
  for (; v + (UNROLL - 1) * ROW_THREADS < vectors; v += UNROLL * ROW_THREADS) {
    Vector loaded[UNROLL];   // all loads are issued before the first product waits for one
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      loaded[u] = load_streaming<VECTOR_WIDTH>(a + static_cast<size_t>(v + u * ROW_THREADS) * VECTOR_WIDTH);
    }
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      add_products<X_ALIGNED>(sum, loaded[u], x + static_cast<size_t>(v + u * ROW_THREADS) * VECTOR_WIDTH);
    }
  }
  for (; v < vectors; v += ROW_THREADS) {
    const size_t at = static_cast<size_t>(v) * VECTOR_WIDTH;
    add_products<X_ALIGNED>(sum, load_streaming<VECTOR_WIDTH>(a + at), x + at);
  }
}

// A thread's part of one row times x.
__device__ __forceinline__ Sum part_of_row(const REAL* a, const REAL* x, unsigned thread) {
  const unsigned offset = misalignment(a);
  const unsigned head = offset < N ? offset : N;
  const unsigned vectors = (N - head) / VECTOR_WIDTH;
  Sum sum[VECTOR_WIDTH] = {};
  if (misalignment(x + head) == 0) {
    walk<true>(sum, a + head, x + head, vectors, thread);
  } else {
    walk<false>(sum, a + head, x + head, vectors, thread);
  }
  Sum total = 0;
#pragma unroll
  for (unsigned w = 0; w < VECTOR_WIDTH; ++w) total += sum[w];
  // Head and tail are shorter than a vector each, so one thread of the row's first warp per element is enough.
  if (thread < head) total += a[thread] * x[thread];
  const unsigned last = head + vectors * VECTOR_WIDTH + thread;
  if (thread < VECTOR_WIDTH && last < N) total += a[last] * x[last];
  return total;
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS * ROWS_PER_BLOCK)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER) {
  __shared__ Sum warp_sums[ROWS_PER_BLOCK][WARPS_PER_ROW];
  const unsigned thread = threadIdx.x % ROW_THREADS, slot = threadIdx.x / ROW_THREADS;
  const unsigned row = blockIdx.x * ROWS_PER_BLOCK + slot;
  const Sum sum = warp_sum(row < M ? part_of_row(row_of(A, row), x, thread) : Sum(0));
  if (WARPS_PER_ROW == 1) {
    if (thread == 0 && row < M) write_y(y, row, alpha, sum, beta);
    return;
  }
  if (thread % 32 == 0) warp_sums[slot][thread / 32] = sum;
  __syncthreads();
  if (thread > 0 || row >= M) return;
  Sum total = 0;
#pragma unroll
  for (unsigned w = 0; w < WARPS_PER_ROW; ++w) total += warp_sums[slot][w];
  write_y(y, row, alpha, total, beta);
}
