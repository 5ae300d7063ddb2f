// The variant `wpt`: the product op(A) op(B) with more work per thread, for every kernel that has one inside. A kernel
// asks where its tile starts (tile_origin), starts the sums as it likes, calls add_products, and hands write_tile
// what makes an output of a sum.
//
// A block computes a TILE_M x TILE_N tile, a thread WPT_M x WPT_N of it in registers: a number read from shared memory
// is used WPT_N (from A) or WPT_M (from B) times. WPT_M = 1 or WPT_N = 1 is the one-dimensional case. Along k the
// block goes in steps of TILE_K through two buffers: while one is computed on, the next step's numbers are on their way
// from global memory to registers, and one barrier a step is enough.
//   block ((TILE_M / WPT_M) * (TILE_N / WPT_N)): one axis; a warp covers a compact patch of the tile (Patch below)
//   grid  (row tiles * column tiles): one axis, in groups of GROUP_M row tiles that share columns of B in the L2 cache
// Both operands lie in shared memory with k outermost, so that a thread's share of a step is a few 16-byte reads. An
// operand that is contiguous along k in memory (A, or B with TRANS_B) is transposed on the way, into padded rows.
// With VECTOR_WIDTH above 1 the matrices start at 16-byte boundaries, as every allocation does.
#pragma once
#include "common/product.cuh"
#include "common/raster.cuh"
#include "common/real.cuh"

#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef TILE_K
#define TILE_K 16
#endif
#ifndef WPT_M
#define WPT_M 4
#endif
#ifndef WPT_N
#define WPT_N 4
#endif
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 4   // elements in one access to global memory, where rows divide into such vectors
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1     // blocks of one multiprocessor that the compiler must leave registers for
#endif
#ifndef LOAD_RUNS
#define LOAD_RUNS 0      // 0: neighbouring threads load neighbouring vectors; 1: each thread loads a run of them
#endif

constexpr unsigned GROUP_M = 16;   // about the square root of the blocks that a large GPU runs at once
constexpr unsigned THREADS_M = TILE_M / WPT_M;
constexpr unsigned THREADS_N = TILE_N / WPT_N;
constexpr unsigned THREADS = THREADS_M * THREADS_N;

// Where a thread stands in its block. A warp is 4 x 8 threads where the tile allows: a patch nearly square needs the
// fewest different words of shared memory for its products, and eight 16-byte reads side by side are free of conflicts.
struct Patch {
  static constexpr unsigned LANES_N = THREADS_M < 4 ? 32 / THREADS_M : tw::min(THREADS_N, 8u);
  static constexpr unsigned LANES_M = 32 / LANES_N;
  static constexpr unsigned WARPS_N = THREADS_N / LANES_N;
  static_assert(LANES_M * LANES_N == 32 && THREADS_M % LANES_M == 0 && THREADS_N % LANES_N == 0, "whole warps");
  unsigned m, n;
  __device__ __forceinline__ explicit Patch(unsigned thread) {
    const unsigned warp = thread / 32, lane = thread % 32;
    m = warp / WARPS_N * LANES_M + lane / LANES_N;
    n = warp % WARPS_N * LANES_N + lane % LANES_N;
  }
};

// A thread's share of one axis: runs of RUN neighbours, each run THREADS * RUN after the one before, so that the runs
// of neighbouring threads touch. `at(thread, i)` is the place in the tile of the thread's i-th element.
template <unsigned WPT, unsigned THREADS_ALONG>
struct Share {
  static constexpr unsigned RUN = tw::min(WPT, QUAD);
  __device__ static __forceinline__ unsigned at(unsigned thread, unsigned i) {
    return i / RUN * (THREADS_ALONG * RUN) + thread * RUN + i % RUN;
  }
  // The thread's elements of one line of a tile.
  __device__ static __forceinline__ void read(REAL (&share)[WPT], const REAL* line, unsigned thread) {
#pragma unroll
    for (unsigned i = 0; i < WPT; i += RUN) {
      const Pack<RUN> run = load_pack<RUN>(line + at(thread, i));
#pragma unroll
      for (unsigned j = 0; j < RUN; ++j) share[i + j] = run.lane[j];
    }
  }
};

// Where the elements of an operand lie: `x` is a row of op(A) or a column of op(B). A kernel whose operands are no matrices
// has places of its own (conv/patches.cuh).
#ifndef PATCHES
// Places in a matrix whose rows are LEADING elements apart; RUN is its row_divisor.
template <bool ALONG_K, unsigned LEADING, unsigned DIVISOR>
struct MatrixPlaces {
  static constexpr unsigned RUN = DIVISOR;   // vectors divide it
  // Whether element p of line x is stored at all, and how far behind the first of all.
  __device__ static __forceinline__ bool find(unsigned x, unsigned p, size_t& at) {
    at = ALONG_K ? static_cast<size_t>(x) * LEADING + p : static_cast<size_t>(p) * LEADING + x;
    return true;
  }
};
typedef MatrixPlaces<!TRANS_A, LDA, DIVISOR_A> PlacesA;
typedef MatrixPlaces<TRANS_B, LDB, DIVISOR_B> PlacesB;
#endif

// The block's walk through one operand along k: TILE_K x TILE_X elements a step, X being m for A and n for B. EXTENT is 0 of A
// where the launch says its rows.
template <unsigned TILE_X, unsigned EXTENT, bool ALONG_K, class Places>
struct Operand {
  static constexpr unsigned WIDTH = Places::RUN % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : 1;
  static constexpr unsigned PER_ROW = (ALONG_K ? TILE_K : TILE_X) / WIDTH;       // vectors of one row in a tile
  static constexpr unsigned VECTORS = TILE_K * TILE_X / WIDTH;
  static constexpr unsigned LOADS = tw::ceil_div(VECTORS, THREADS);                    // vectors of one thread
  // Transposing, a warp writes down columns: sixteen bytes more spread those over the banks and keep reads aligned.
  static constexpr unsigned PITCH = TILE_X + (ALONG_K ? QUAD : 0);
  typedef REAL Tile[TILE_K][PITCH];

  const REAL* source;
  unsigned thread, x0;
  Pack<WIDTH> staged[LOADS];

  __device__ __forceinline__ Operand(const REAL* source, unsigned thread, unsigned x0)
      : source(source), thread(thread), x0(x0) {}

  __device__ __forceinline__ unsigned x_of(unsigned vector) const {
    return ALONG_K ? vector / PER_ROW : vector % PER_ROW * WIDTH;
  }
  __device__ __forceinline__ unsigned p_of(unsigned vector) const {
    return ALONG_K ? vector % PER_ROW * WIDTH : vector / PER_ROW;
  }
  // The thread's i-th vector of a step.
  __device__ __forceinline__ unsigned number(unsigned i) const {
    return LOAD_RUNS ? thread * LOADS + i : thread + i * THREADS;
  }
  __device__ __forceinline__ bool has(unsigned vector) const { return VECTORS % THREADS == 0 || vector < VECTORS; }

  // From global memory to registers; zero outside the matrix. A vector is inside or outside as a whole, because rows
  // divide into vectors.
  __device__ __forceinline__ void load(unsigned p0) {
#pragma unroll
    for (unsigned i = 0; i < LOADS; ++i) {
      const unsigned vector = number(i), x = x0 + x_of(vector), p = p0 + p_of(vector);
      const bool inside = has(vector) && (EXTENT == 0 ? x < M : EXTENT % TILE_X == 0 || x < EXTENT) && (K % TILE_K == 0 || p < K);
      size_t at;
      const bool stored = Places::find(x, p, at);
      staged[i] = inside && stored ? load_pack<WIDTH>(source + at) : Pack<WIDTH>{};
    }
  }

  // From registers to shared memory.
  __device__ __forceinline__ void store(Tile& tile) const {
#pragma unroll
    for (unsigned i = 0; i < LOADS; ++i) {
      const unsigned vector = number(i);
      if (!has(vector)) continue;
      if constexpr (ALONG_K) {
#pragma unroll
        for (unsigned j = 0; j < WIDTH; ++j) tile[p_of(vector) + j][x_of(vector)] = staged[i].lane[j];
      } else {
        store_pack<WIDTH>(&tile[p_of(vector)][x_of(vector)], staged[i]);
      }
    }
  }
};

typedef Operand<TILE_M, KNOWN_M, !TRANS_A, PlacesA> OperandA;
typedef Operand<TILE_N, N, TRANS_B, PlacesB> OperandB;
typedef Share<WPT_M, THREADS_M> ShareM;
typedef Share<WPT_N, THREADS_N> ShareN;

// One step: the products of TILE_K columns of A's tile with as many rows of B's.
__device__ __forceinline__ void multiply(
    REAL (&sum)[WPT_M][WPT_N], const OperandA::Tile& tile_a, const OperandB::Tile& tile_b, const Patch& patch) {
#pragma unroll
  for (unsigned p = 0; p < TILE_K; ++p) {
    REAL a[WPT_M], b[WPT_N];
    ShareM::read(a, tile_a[p], patch.m);
    ShareN::read(b, tile_b[p], patch.n);
#pragma unroll
    for (unsigned i = 0; i < WPT_M; ++i) {
#pragma unroll
      for (unsigned j = 0; j < WPT_N; ++j) sum[i][j] += a[i] * b[j];
    }
  }
}

// Where the block's tile starts.
struct Origin {
  unsigned m, n;
};
__device__ __forceinline__ Origin tile_origin(unsigned block) {
  Origin origin;
  grouped_raster<TILE_M, TILE_N, GROUP_M>(block, origin.m, origin.n);
  return origin;
}

// Adds the thread's share of the tile's products to `sum`. Every thread of the block must call it, once.
__device__ __forceinline__ void add_products(
    REAL (&sum)[WPT_M][WPT_N], const REAL* A, const REAL* B, const Origin& origin, const Patch& patch) {
  alignas(16) __shared__ OperandA::Tile tile_a[2];
  alignas(16) __shared__ OperandB::Tile tile_b[2];
  OperandA a(A, threadIdx.x, origin.m);
  OperandB b(B, threadIdx.x, origin.n);
  a.load(0);
  b.load(0);
  a.store(tile_a[0]);
  b.store(tile_b[0]);
  __syncthreads();
  unsigned current = 0;
  for (unsigned p0 = 0; p0 < K; p0 += TILE_K) {
    const bool more = p0 + TILE_K < K;
    if (more) {
      a.load(p0 + TILE_K);
      b.load(p0 + TILE_K);
    }
    multiply(sum, tile_a[current], tile_b[current], patch);
    if (more) {
      // Nobody reads the other buffer: its last readers passed the barrier of the step before.
      a.store(tile_a[current ^ 1]);
      b.store(tile_b[current ^ 1]);
    }
    __syncthreads();
    current ^= 1;
  }
}

// The thread's sums to C, in vectors where rows of C divide into them. `finish(sum, old)` is what goes there; `old` is
// what was there, read only where Finish::READS_C.
template <class Finish>
__device__ __forceinline__ void write_tile(
    const REAL (&sum)[WPT_M][WPT_N], REAL* C, const Origin& origin, const Patch& patch, const Finish& finish) {
  constexpr unsigned FITTING = tw::min(ShareN::RUN, unsigned{VECTOR_WIDTH});
  constexpr unsigned WIDTH = DIVISOR_C % FITTING == 0 ? FITTING : 1;
#pragma unroll
  for (unsigned i = 0; i < WPT_M; ++i) {
    const unsigned row = origin.m + ShareM::at(patch.m, i);
    if (!M_DIVIDES(TILE_M) && row >= M) continue;
#pragma unroll
    for (unsigned j = 0; j < WPT_N; j += WIDTH) {
      const unsigned column = origin.n + ShareN::at(patch.n, j);
      if (N % TILE_N != 0 && column >= N) continue;
      REAL* target = C + static_cast<size_t>(row) * LDC + column;
      Pack<WIDTH> out = {};
      if (Finish::READS_C) out = load_pack<WIDTH>(target);
#pragma unroll
      for (unsigned w = 0; w < WIDTH; ++w) out.lane[w] = finish(sum[i][j + w], out.lane[w]);
      store_pack<WIDTH>(target, out);
    }
  }
}
