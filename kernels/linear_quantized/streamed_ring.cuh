// W on its way into shared memory, for the variant `streamed`.
#pragma once
#include "ptx/cp_async.cuh"
#include "streamed_parameters.cuh"

// Copies of a warp into its ring of steps in shared memory, tile after tile. A lane copies the weights that it takes
// itself, of each fragment 16 bytes of two rows of W, 8 apart; and lane i the word that has the scale of row i.
struct Source {
  const Weight* W;
  const Half* S;
  unsigned first_row, first, end;   // rows of a tile, steps
  unsigned tile, step;              // what is copied next
  const Weight* weights;            // of the lane
  const Half* scales;

  __device__ __forceinline__ Source(
      const Weight* weights_of_all, const Half* scales_of_all, unsigned row, unsigned first_step, unsigned end_step)
      : W(weights_of_all), S(scales_of_all), first_row(row), first(first_step), end(end_step), tile(blockIdx.x / SPLIT) {
    begin_tile();
  }
  __device__ __forceinline__ void begin_tile() {
    const unsigned row = tile * TILE_N + first_row, lane = threadIdx.x % 32;
    step = first;
    weights = W + static_cast<size_t>(tw::min(row + lane / 4, N - 1)) * LINE + first * STEP_BYTES + lane % 4 * 16;
    scales = S + scale_at(tw::min(row + lane % (16 * ROWS), N - 1), first);
  }
  // The lane's I-th row, or the last.
  template <unsigned I>
  __device__ __forceinline__ void copy_row(unsigned target) const {
    const unsigned row = tile * TILE_N + first_row + threadIdx.x % 32 / 4;
    const Weight* from = weights + I * 8 * LINE;
    if (N % TILE_N != 0 && row + I * 8 >= N) from -= static_cast<size_t>(row + I * 8 - tw::max(row, N - 1)) * LINE;
#pragma unroll
    for (unsigned j = 0; j < UNROLL * STEP_LOADS; ++j) {
      const unsigned place = j / STEP_LOADS * STEP_WEIGHTS + (I * STEP_LOADS + j % STEP_LOADS) * 32;
      cp_async<16, 0, 0>(target + place * 16, from + j * 64);
    }
  }
  // The next steps to the stage at this address, where there are some.
  __device__ __forceinline__ void copy(unsigned stage) {
    if (tile < TILES) {
      const unsigned lane = threadIdx.x % 32;
      copy_row<0>(stage + lane * 16);
      copy_row<1>(stage + lane * 16);
      if constexpr (ROWS == 2) {
        copy_row<2>(stage + lane * 16);
        copy_row<3>(stage + lane * 16);
      }
      const void* const own = reinterpret_cast<const void*>(reinterpret_cast<size_t>(scales) / SCALE_BYTES * SCALE_BYTES);
      if (ROWS == 2 || lane < 16) cp_async<SCALE_BYTES, 0, 0>(stage + WEIGHT_BYTES + lane * SCALE_BYTES, own);
      advance();
    }
    cp_async_commit_group();
  }
  __device__ __forceinline__ void advance() {
    step += UNROLL;
    weights += UNROLL * STEP_BYTES;
    scales += GROUPS == 1 ? 0 : SCALES;
    if (step == end) {
      tile += STRIDE;
      begin_tile();
    }
  }
  // Where the scale of a row's step is in S.
  __device__ __forceinline__ static unsigned scale_at(unsigned row, unsigned step) {
    return (row * GROUPS + step * STEP / GROUP) * (1 + ZEROS);
  }
};
