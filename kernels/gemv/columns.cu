// y = alpha Aᵀ x + beta y.  A: (n, m) row-major, x: (n), y: (m).
//
// Transposed A: the terms of an output lie a row apart, its neighbours' terms beside them. So threads own outputs,
// VECTOR_WIDTH neighbours each, and COLUMN_THREADS of them lie side by side along m, reading whole lines. SLICES such
// teams in a block, and SPLIT blocks, share the n terms: a team takes every SLICES-th row of its block's part, UNROLL at
// a time, so that so many loads are in flight. Sums of slices meet in shuffles and shared memory, those of blocks in the
// workspace.
//   block (COLUMN_THREADS * SLICES), a multiple of 32; grid (blocks that cover m * SPLIT)
// Splitting the summation of a transposed product: Abdelfattah, Keyes, Ltaief, "KBLAS" (ACM TOMS 42, 2016).
#ifndef COLUMN_THREADS
#define COLUMN_THREADS 32
#endif
#ifndef SLICES
#define SLICES 8
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4
#endif
#ifndef UNROLL
#define UNROLL 4   // rows whose loads are in flight together
#endif
#ifndef SPLIT
#define SPLIT 1   // blocks that share an output
#endif
#include "common/global_memory.cuh"
#include "common/real.cuh"
#include "common/split.cuh"
#include "common/workspace.cuh"
#include "problem.cuh"

typedef Pack<VECTOR_WIDTH> Vector;

constexpr unsigned THREADS = COLUMN_THREADS * SLICES;
constexpr unsigned OUTPUTS = COLUMN_THREADS * VECTOR_WIDTH;   // of a block
#ifdef M_AT_LAUNCH
constexpr unsigned COLUMN_BLOCKS = 0;   // whatever their number, counters have their own place
#else
constexpr unsigned COLUMN_BLOCKS = (M - 1) / OUTPUTS + 1;
#endif
constexpr unsigned PART = (N - 1) / SPLIT + 1;
constexpr unsigned SLICES_PER_WARP = COLUMN_THREADS < 32 ? 32 / COLUMN_THREADS : 1;
constexpr unsigned SUMMANDS = SLICES / SLICES_PER_WARP;   // that shuffles leave of an output in a block

// A vector of A. Without DIVIDES (the launch says how long rows are, and they do not divide into vectors) it starts anywhere,
// and the row has `left` elements from there on.
template <bool DIVIDES>
__device__ __forceinline__ Vector load(const REAL* a, unsigned left) {
  if constexpr (DIVIDES) {
    return load_streaming<VECTOR_WIDTH>(a);
  } else {
    Vector loaded;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) loaded.lane[w] = w < left ? load_streaming<1>(a + w).lane[0] : REAL(0);
    return loaded;
  }
}

// One step of the walk along a slice: UNROLL rows, SLICES apart. CHECKED: only those before `end`.
template <bool CHECKED, bool DIVIDES = true>
__device__ __forceinline__ void step(
    Sum (&sum)[VECTOR_WIDTH], const REAL* a, const REAL* x, unsigned row, unsigned end, unsigned left = VECTOR_WIDTH) {
  Vector loaded[UNROLL];   // all loads are issued before the first product waits for one
  REAL factor[UNROLL];
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    if (!CHECKED || row + u * SLICES < end) {
      loaded[u] = load<DIVIDES>(a + static_cast<size_t>(row + u * SLICES) * M, left);
      factor[u] = x[row + u * SLICES];
    } else {
      loaded[u] = {};
      factor[u] = 0;
    }
  }
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum[w] += loaded[u].lane[w] * factor[u];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER WORKSPACE_PARAMETER) {
  __shared__ Sum sums[SUMMANDS][OUTPUTS];
  const unsigned place = threadIdx.x % COLUMN_THREADS, slice = threadIdx.x / COLUMN_THREADS;
  const unsigned block = blockIdx.x / SPLIT, part = blockIdx.x % SPLIT;
  const unsigned column = (block * COLUMN_THREADS + place) * VECTOR_WIDTH;
  const unsigned begin = part * PART;   // of the last parts nothing may be left
  const unsigned end = begin >= N ? 0 : N - begin < PART ? N : begin + PART;
  Sum sum[VECTOR_WIDTH] = {};
  if (column < M && begin < N) {
    unsigned row = begin + slice;
#ifdef M_AT_LAUNCH
    if (M % VECTOR_WIDTH != 0) {   // rare, and every load is checked anyway: whole steps have no loop of their own
      for (; row < end; row += UNROLL * SLICES) step<true, false>(sum, A + column, x, row, end, M - column);
    }
#endif
    for (; row + (UNROLL - 1) * SLICES < end; row += UNROLL * SLICES) step<false>(sum, A + column, x, row, end);
    if (row < end) step<true>(sum, A + column, x, row, end);
  }

#pragma unroll
  for (unsigned w = 0; w < VECTOR_WIDTH; ++w) {
#pragma unroll
    for (unsigned distance = 16; distance >= COLUMN_THREADS; distance /= 2) {
      sum[w] += __shfl_down_sync(0xffffffffu, sum[w], distance);
    }
    if (slice % SLICES_PER_WARP == 0) sums[slice / SLICES_PER_WARP][place * VECTOR_WIDTH + w] = sum[w];
  }
  __syncthreads();
  Sum* const mine =
      SPLIT > 1 ? partial_sums(workspace, COLUMN_BLOCKS) + static_cast<size_t>(blockIdx.x) * OUTPUTS : nullptr;
  for (unsigned output = threadIdx.x; output < OUTPUTS; output += THREADS) {
    Sum total = 0;
#pragma unroll
    for (unsigned s = 0; s < SUMMANDS; ++s) total += sums[s][output];
    if (SPLIT > 1) mine[output] = total;
    else if (block * OUTPUTS + output < M) write_y(y, block * OUTPUTS + output, alpha, total, beta);
  }
  if constexpr (SPLIT > 1) {
    if (!arrives_last(workspace, block, SPLIT)) return;
    const Sum* const all = partial_sums(workspace, COLUMN_BLOCKS) + static_cast<size_t>(block) * SPLIT * OUTPUTS;
    add_parts<SPLIT, OUTPUTS, THREADS>(all, [&](unsigned output, Sum total) {
      const unsigned row = block * OUTPUTS + output;
      if (row < M) write_y(y, row, alpha, total, beta);
    });
  }
}
