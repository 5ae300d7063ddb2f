// The walk of the variant `register` along k: a thread's sums in registers, fed from the ring of buffers.
#pragma once
#include "fma/operand.cuh"

typedef Operand<TILE_M, KNOWN_M, !TRANS_A, LDA, DIVISOR_A> OperandA;
typedef Operand<TILE_N, N, TRANS_B, LDB, DIVISOR_B> OperandB;

// A thread's share of one axis of the warp's rectangle: runs of RUN neighbours, the runs of neighbouring lanes touching;
// and its numbers of two k, the one at work and the next.
template <class Tile, unsigned WPT, unsigned LANES_ALONG>
struct Share {
  static constexpr unsigned RUN = QUAD;
  static_assert(WPT % RUN == 0, "16-byte reads");
  REAL number[2][WPT];

  __device__ static __forceinline__ unsigned at(unsigned lane, unsigned i) {
    return i / RUN * (LANES_ALONG * RUN) + lane * RUN + i % RUN;
  }
  // Reads those of `k`; `mine` is where the thread's first element starts in the tile.
  __device__ __forceinline__ void read(const REAL* mine, unsigned k) {
#pragma unroll
    for (unsigned i = 0; i < WPT; i += RUN) {
      const Pack<RUN> run = load_pack<RUN>(mine + Tile::start(k) + i * LANES_ALONG);
#pragma unroll
      for (unsigned j = 0; j < RUN; ++j) number[k % 2][i + j] = run.lane[j];
    }
  }
};
typedef Share<OperandA, WPT_M, LANES_M> ShareM;
typedef Share<OperandB, WPT_N, LANES_N> ShareN;

// Where the thread's first elements lie in a tile. Of four neighbouring lanes each two read the same 16 bytes of A, and
// each two the same of B: shared memory then serves half a warp at a time, not a quarter (measured on an H200: 2.0
// passes a read instead of 3.3).
struct ThreadOrigin {
  unsigned m, n;
  __device__ __forceinline__ ThreadOrigin() {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned lane_m = lane % 2 + lane / (2 * LANES_N) * 2, lane_n = lane / 2 % LANES_N;
    m = warp / WARPS_N * (LANES_M * WPT_M) + ShareM::at(lane_m, 0);
    n = warp % WARPS_N * (LANES_N * WPT_N) + ShareN::at(lane_n, 0);
  }
};

// Every product of one k, back and forth along rows or columns: an FMA then shares a factor with the one before it,
// which stays in the operand cache. Two registers a cycle are all that the banks give, and an FMA has three operands.
__device__ __forceinline__ void multiply(REAL (&sum)[WPT_M][WPT_N], const REAL (&a)[WPT_M], const REAL (&b)[WPT_N]) {
  constexpr unsigned OUTER = BY_COLUMNS ? WPT_N : WPT_M, INNER = BY_COLUMNS ? WPT_M : WPT_N;
#pragma unroll
  for (unsigned outer = 0; outer < OUTER; ++outer) {
#pragma unroll
    for (unsigned step = 0; step < INNER; ++step) {
      const unsigned inner = outer % 2 ? INNER - 1 - step : step;
      const unsigned i = BY_COLUMNS ? inner : outer, j = BY_COLUMNS ? outer : inner;
      sum[i][j] += a[i] * b[j];
    }
  }
}

// The thread's share of the products of the block's steps.
__device__ __forceinline__ void add_products(
    REAL (&sum)[WPT_M][WPT_N], OperandA& a, OperandB& b, const REAL* tiles_a, const REAL* tiles_b, unsigned steps) {
  // Up to STAGES - 1 steps are loading before the first is computed on.
#pragma unroll
  for (unsigned stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < steps) {
      a.load(stage);
      b.load(stage);
      a.store(stage);
      b.store(stage);
      a.advance();
      b.advance();
    }
    cp_async_commit_group();
  }
  cp_async_wait_group<STAGES - 2>();
  __syncthreads();

  ShareM share_a;
  ShareN share_b;
  const REAL* tile_a = tiles_a;   // the thread's first element of the step that is read
  const REAL* tile_b = tiles_b;
  share_a.read(tile_a, 0);
  share_b.read(tile_b, 0);
  unsigned reading = 0, writing = STAGES - 1;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
#pragma unroll
    for (unsigned k = 0; k < TILE_K; ++k) {
      const unsigned next = (k + 1) % TILE_K;
      if (next == 0) {
        if (step + (STAGES - 1) < steps) {
          a.store(writing);
          b.store(writing);
        }
        // The step is read to its end, so that the barrier also frees its buffer for the next copies.
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        reading = reading == STAGES - 1 ? 0 : reading + 1;
        writing = writing == STAGES - 1 ? 0 : writing + 1;
        tile_a = tiles_a + reading * OperandA::TILE_ELEMENTS;
        tile_b = tiles_b + reading * OperandB::TILE_ELEMENTS;
        a.advance();
        b.advance();
      }
      share_a.read(tile_a, next);
      share_b.read(tile_b, next);
      if (k == 0) {
        // All copies of a step at once: ptxas puts three idle instructions ahead of every run of copies.
        if (step + (STAGES - 1) < steps) {
          a.load(writing);
          b.load(writing);
        }
        cp_async_commit_group();
      }
      multiply(sum, share_a.number[k % 2], share_b.number[k % 2]);
    }
  }
}
