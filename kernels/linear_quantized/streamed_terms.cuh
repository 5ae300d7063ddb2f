// X in shared memory, for the variant `streamed`.
#pragma once
#include "streamed_parameters.cuh"
#include "whole_numbers.cuh"

// X's steps from `first` on, `count` of them, on their way into shared memory: of a step, of a quad, of a row, the lanes'
// terms, in the order that pairs of weights have. A warp loads up to four rows of two steps at a time, whose addresses are one
// and constants beside it. Rows behind the last are the last again: their sums go nowhere. Blocks begin at different places,
// since one part of the L2 cache has what they would all ask for at once.
struct Terms {
  static constexpr unsigned WARPS = THREADS / 32, BATCH = X_ROWS % 4 == 0 ? 4 : X_ROWS % 2 == 0 ? 2 : 1;   // rows
  static constexpr unsigned BATCHES = X_ROWS / BATCH, OWN_STEPS = tw::ceil_div(STEPS, unsigned{SPLIT});
  static constexpr unsigned PAIRS = tw::ceil_div(OWN_STEPS, 2u);   // of steps
  static constexpr unsigned LOADS = PAIRS * BATCHES, TOGETHER = tw::min(tw::ceil_div(LOADS, WARPS), MOST_HELD / BATCH);
  const Half* X;       // the lane's, of the first pair
  unsigned place;      // in shared memory, of the lane's, of 16 bytes
  unsigned count;
  uint4 held[TOGETHER][BATCH];

  __device__ __forceinline__ Terms(const Half* all, unsigned first, unsigned steps) : count(steps) {
    const unsigned lane = threadIdx.x % 32, t = BITS == 8 ? lane / 2 % 4 : lane / 4 % 4;
    X = all + first * STEP + lane * 8;
    place = (lane / 16 * QUADS + (BITS == 8 ? lane / 8 % 2 * 2 + lane % 2 : lane % 4)) * QUAD_PITCH + t;
  }
  // The warp's i-th load from `at` on, where it has one: a pair of steps, and the first of its rows.
  template <class Visit>
  __device__ __forceinline__ void each(unsigned at, const Visit& visit) {
    const unsigned begin = blockIdx.x % 16 * LOADS / 16;
#pragma unroll
    for (unsigned i = 0; i < TOGETHER; ++i) {
      const unsigned ahead = at + i * WARPS + begin, number = ahead < LOADS ? ahead : ahead - LOADS;
      const unsigned pair = number / BATCHES;
      const bool is_step = (OWN_STEPS % 2 == 0 && STEPS % SPLIT == 0) || pair * 2 + threadIdx.x % 32 / 16 < count;
      if (at + i * WARPS < LOADS && is_step) visit(held[i], pair, number % BATCHES * BATCH);
    }
  }
  __device__ __forceinline__ void load(unsigned at) {
    each(at, [=](uint4 (&x)[BATCH], unsigned pair, unsigned row) {
      const unsigned m = blockIdx.y * M_ROWS + row;
      const Half* const line = X + pair * (2 * STEP) + static_cast<size_t>(M % BATCH == 0 ? tw::min(m, M - BATCH) : 0) * K;
#pragma unroll
      for (unsigned j = 0; j < BATCH; ++j) {
        const size_t beyond = M % BATCH == 0 ? j : tw::min(m + j, M - 1);
        x[j] = __ldg(reinterpret_cast<const uint4*>(line + beyond * K));
      }
    });
  }
  __device__ __forceinline__ void store(uint4* shared, unsigned at) {
    each(at, [=](const uint4 (&x)[BATCH], unsigned pair, unsigned row) {
      uint4* const target = shared + place + pair * (2 * QUADS * QUAD_PITCH) + row * 4;
#pragma unroll
      for (unsigned j = 0; j < BATCH; ++j) target[j * 4] = as_pairs(x[j]);
    });
  }
  // The part that a warp cannot hold at once is loaded and stored after that.
  __device__ __forceinline__ void finish(uint4* shared) {
    const unsigned warp = threadIdx.x / 32;
    store(shared, warp);
#pragma unroll 1
    for (unsigned at = warp + TOGETHER * WARPS; at < LOADS; at += TOGETHER * WARPS) {
      load(at);
      store(shared, at);
    }
  }
};
