// y = alpha A x + beta y.  A: (m, n) row-major, x: (n), y: (m).
//
// Memory kept busy whatever the shape. A team of THREADS_PER_ROW threads walks along ROWS rows at once, so that what it
// reads of x serves all of them and ROWS * UNROLL vectors of A are in flight a thread, also in the last, incomplete step.
// Small teams read short rows, neighbours side by side; few and long rows are cut into SPLIT parts, a block each.
// Where n does not divide into vectors, rows start anywhere, but every PERIOD-th starts at the same place within
// a vector: a team takes rows so far apart, and cuts all of them at the same columns into head, whole vectors and tail.
//   block (BLOCK), BLOCK / THREADS_PER_ROW teams; grid (blocks that cover the rows * SPLIT)
// Several rows a thread, to read x less often: Abdelfattah, Keyes, Ltaief, "KBLAS" (ACM TOMS 42, 2016).
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef THREADS_PER_ROW
#define THREADS_PER_ROW 256
#endif
#ifndef ROWS
#define ROWS 1   // of a team
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4
#endif
#ifndef UNROLL
#define UNROLL 4   // vectors of each row that a thread has in flight
#endif
#ifndef SPLIT
#define SPLIT 1   // blocks that share a row
#endif
#include "common/global_memory.cuh"
#include "common/integers.cuh"
#include "common/real.cuh"
#include "common/reduction.cuh"
#include "common/split.cuh"
#include "common/workspace.cuh"
#include "problem.cuh"

typedef Pack<VECTOR_WIDTH> Vector;

constexpr unsigned TEAMS = BLOCK / THREADS_PER_ROW;
constexpr unsigned ALIGNED = alignof(Vector) / REAL_BYTES;   // a Vector may start at every so many elements
constexpr unsigned PERIOD = ALIGNED / tw::gcd(N, ALIGNED);
constexpr unsigned STRIDE = ROWS > 1 && PERIOD > TEAMS ? PERIOD : TEAMS;   // between the rows of a team
constexpr unsigned PHASES = STRIDE / TEAMS;                                // blocks whose rows interleave
#ifdef M_AT_LAUNCH
constexpr unsigned ROW_BLOCKS = 0;   // whatever their number, counters have their own place
#else
constexpr unsigned ROW_BLOCKS = (M - 1) / (ROWS * STRIDE) * PHASES + PHASES;
#endif
// A part is a whole number of 128-byte lines, where rows are aligned.
constexpr unsigned LINE = 128 / (VECTOR_WIDTH * REAL_BYTES);
constexpr unsigned PART = SPLIT == 1 ? N / VECTOR_WIDTH : ((N / VECTOR_WIDTH + SPLIT - 1) / SPLIT + LINE - 1) / LINE * LINE;

// How many elements of a row lie before the first that a Vector may be read from. A itself is aligned, so wrapping around
// does no harm: ALIGNED is a power of two.
__device__ __forceinline__ unsigned head_of(unsigned row) {
  const unsigned head = (0u - row * N) % ALIGNED;
  return head < N ? head : N;
}

template <bool X_ALIGNED>
__device__ __forceinline__ Vector load_x(const REAL* x) {
  if constexpr (X_ALIGNED) {
    return load_pack<VECTOR_WIDTH>(x);
  } else {
    Vector loaded;
#pragma unroll
    for (unsigned w = 0; w < VECTOR_WIDTH; ++w) loaded.lane[w] = x[w];
    return loaded;
  }
}

// One step of the walk: UNROLL vectors of each row, THREADS_PER_ROW apart. CHECKED: only those before `end`.
template <bool CHECKED, bool X_ALIGNED>
__device__ __forceinline__ void step(
    Sum (&sum)[ROWS], const REAL* const (&a)[ROWS], const REAL* x, unsigned vector, unsigned end) {
  Vector loaded[UNROLL][ROWS], factor[UNROLL];   // all loads are issued before the first product waits for one
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    const size_t at = static_cast<size_t>(vector + u * THREADS_PER_ROW) * VECTOR_WIDTH;
    if (!CHECKED || vector + u * THREADS_PER_ROW < end) {
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r) loaded[u][r] = load_streaming<VECTOR_WIDTH>(a[r] + at);
      factor[u] = load_x<X_ALIGNED>(x + at);
    } else {
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r) loaded[u][r] = {};
      factor[u] = {};
    }
  }
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
#pragma unroll
      for (unsigned w = 0; w < VECTOR_WIDTH; ++w) sum[r] += loaded[u][r].lane[w] * factor[u].lane[w];
    }
  }
}

// A thread's share of the vectors from `begin` to `end`.
template <bool X_ALIGNED>
__device__ __forceinline__ void walk(
    Sum (&sum)[ROWS], const REAL* const (&a)[ROWS], const REAL* x, unsigned begin, unsigned end, unsigned thread) {
  unsigned vector = begin + thread;
  for (; vector + (UNROLL - 1) * THREADS_PER_ROW < end; vector += UNROLL * THREADS_PER_ROW) {
    step<false, X_ALIGNED>(sum, a, x, vector, end);
  }
  if (vector < end) step<true, X_ALIGNED>(sum, a, x, vector, end);
}

// A thread's part of the products of its team's rows, which start at `first`, with x.
__device__ __forceinline__ void multiply(
    Sum (&sum)[ROWS], const REAL* A, const REAL* x, unsigned first, unsigned part, unsigned thread) {
  const REAL* a[ROWS];
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) {
    a[r] = row_of(A, first + r * STRIDE < M ? first + r * STRIDE : first);   // past the end: no matter, no write
  }
  const unsigned head = head_of(first);
  const unsigned vectors = (N - head) / VECTOR_WIDTH;
  const unsigned begin = part * PART;
  const unsigned end = SPLIT == 1 || vectors - begin < PART ? vectors : begin + PART;

  // Head and tail belong to the first part. What a thread reads of them is in flight while it walks.
  const unsigned edges = part == 0 ? N - vectors * VECTOR_WIDTH : 0;
  REAL edge[ROWS] = {}, edge_factor = 0;
  if (thread < edges) {
    const unsigned at = thread < head ? thread : thread + vectors * VECTOR_WIDTH;
    edge_factor = x[at];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) edge[r] = a[r][at];
  }
  if (begin < vectors) {
    const REAL* from[ROWS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) from[r] = a[r] + head;
    if (N % ALIGNED == 0 || head == 0) {   // x is aligned too
      walk<true>(sum, from, x + head, begin, end, thread);
    } else {
      walk<false>(sum, from, x + head, begin, end, thread);
    }
  }
  for (unsigned i = thread + THREADS_PER_ROW; i < edges; i += THREADS_PER_ROW) {   // where a team is so small
    const unsigned at = i < head ? i : i + vectors * VECTOR_WIDTH;
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) sum[r] += a[r][at] * x[at];
  }
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) sum[r] += edge[r] * edge_factor;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(Sum alpha, const REAL* __restrict__ A, const REAL* __restrict__ x, Sum beta, REAL* __restrict__ y
     SIZE_PARAMETER WORKSPACE_PARAMETER) {
  const unsigned thread = threadIdx.x % THREADS_PER_ROW, team = threadIdx.x / THREADS_PER_ROW;
  const unsigned block = blockIdx.x / SPLIT, part = blockIdx.x % SPLIT;
  const unsigned first = block / PHASES * (ROWS * STRIDE) + block % PHASES * TEAMS;
  Sum sum[ROWS] = {};
  if (first + team < M) multiply(sum, A, x, first + team, part, thread);

  // With SPLIT there is one team, and the sums of its rows are partial ones.
  Sum* const mine = SPLIT > 1 ? partial_sums(workspace, ROW_BLOCKS) + static_cast<size_t>(blockIdx.x) * ROWS : nullptr;
  const auto deliver = [&](unsigned of_team, unsigned r, Sum total) {
    const unsigned row = first + of_team + r * STRIDE;
    if (SPLIT > 1) mine[r] = total;
    else if (row < M) write_y(y, row, alpha, total, beta);
  };
  constexpr unsigned LANES = THREADS_PER_ROW < 32 ? THREADS_PER_ROW : 32;
#pragma unroll
  for (unsigned r = 0; r < ROWS; ++r) {
#pragma unroll
    for (unsigned distance = LANES / 2; distance > 0; distance /= 2) {
      sum[r] += __shfl_down_sync(0xffffffffu, sum[r], distance, LANES);
    }
  }
  if constexpr (THREADS_PER_ROW <= 32) {
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
      if (thread == 0) deliver(team, r, sum[r]);
    }
  } else {
    constexpr unsigned WARPS = (THREADS_PER_ROW + 31) / 32;   // of a team
    __shared__ Sum warp_sums[ROWS][TEAMS][WARPS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
      if (thread % 32 == 0) warp_sums[r][team][thread / 32] = sum[r];
    }
    __syncthreads();
    if (threadIdx.x < ROWS * TEAMS) {
      const unsigned r = threadIdx.x / TEAMS, of_team = threadIdx.x % TEAMS;
      Sum total = 0;
#pragma unroll
      for (unsigned w = 0; w < WARPS; ++w) total += warp_sums[r][of_team][w];
      deliver(of_team, r, total);
    }
  }
  if constexpr (SPLIT > 1) {
    if (!arrives_last(workspace, block, SPLIT)) return;
    const Sum* const all = partial_sums(workspace, ROW_BLOCKS) + static_cast<size_t>(block) * SPLIT * ROWS;
    add_parts<SPLIT, ROWS, BLOCK>(all, [&](unsigned r, Sum total) {
      const unsigned row = first + r * STRIDE;
      if (row < M) write_y(y, row, alpha, total, beta);
    });
  }
}
