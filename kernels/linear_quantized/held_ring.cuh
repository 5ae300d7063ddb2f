// W on its way into shared memory, for the variant `held`.
#pragma once
#include "held_parameters.cuh"
#include "ptx/cp_async.cuh"

// Copies of a warp into its ring, fragment after fragment: of each row of W whole lines of the cache, eight lanes a line; and
// lane i the word that has the scale of row i. The 16 bytes of a line lie in an order that its row's number turns, so that those
// at the same place of eight rows are in different banks.
struct Source {
  const Weight* weights;   // of the lane's first row
  const Half* scales;
  unsigned fragment;         // that is copied next
  unsigned places[2], word;  // in the first stage, of the lane's weights of even and odd fours of rows, and of its scales

  __device__ __forceinline__ Source(const Weight* W, const Half* S, unsigned first, unsigned part, unsigned ring)
      : fragment(first) {
    const unsigned lane = threadIdx.x % 32, row = first * 16;
    weights = W + static_cast<size_t>(row + lane / 8) * LINE_BYTES + part * (OWN_PIECES * PIECE) + lane % 8 * 16;
    scales = S + scale_at(row + lane % 16, part * OWN);
    for (unsigned i = 0; i < 2; ++i) places[i] = ring + lane / 8 * PIECE + (lane % 8 ^ i * 4 + lane / 8) * 16;
    word = ring + WEIGHT_BYTES + lane * SCALE_BYTES;
  }
  // Where the scale of a row's step is in S.
  __device__ __forceinline__ static size_t scale_at(unsigned row, unsigned step) {
    return (static_cast<size_t>(row) * GROUPS + step * STEP / GROUP) * (1 + ZEROS);
  }
  // The next fragment's, where there is one, to the stage that lies so many bytes behind the first. Rows behind the last are
  // the last.
  __device__ __forceinline__ void copy(unsigned stage) {
    if (fragment < FRAGMENTS) {
      const unsigned lane = threadIdx.x % 32;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const Weight* const from = weights + i * 4 * LINE_BYTES - beyond(fragment * 16 + i * 4 + lane / 8) * LINE_BYTES;
#pragma unroll
        for (unsigned j = 0; j < OWN_PIECES; ++j) {
          cp_async<16, 0, 0>(stage + places[i % 2] + (j * 16 + i * 4) * PIECE, from + j * PIECE);
        }
      }
      if (lane < 16) {
        const Half* const from = scales - beyond(fragment * 16 + lane) * (GROUPS * (1 + ZEROS));
        cp_async<SCALE_BYTES, 0, 0>(
            stage + word, reinterpret_cast<const void*>(reinterpret_cast<size_t>(from) / SCALE_BYTES * SCALE_BYTES));
      }
      fragment += STRIDE;
      weights += static_cast<size_t>(STRIDE) * 16 * LINE_BYTES;
      scales += static_cast<size_t>(STRIDE) * 16 * GROUPS * (1 + ZEROS);
    }
    cp_async_commit_group();
  }
  __device__ __forceinline__ static size_t beyond(unsigned row) { return N % 16 != 0 && row >= N ? row - (N - 1) : 0; }
};
