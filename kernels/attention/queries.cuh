// Q as two FP16 parts in shared memory, by the warps that multiply it, each row by a scale of its own.
#pragma once
#include "ring.cuh"

// State of a thread's two rows of scores, lane / 4 of its warp's 16 and 8 on. Scores are those of scaled queries.
struct Rows {
  unsigned first;        // query of the first row
  float factor[2];       // from a score to the exponent of two, positive
  float scaled_by[2];    // what a query was multiplied by, the sign of `scale` included
  bool are_unfit;        // of the warp: two parts do not hold them

  __device__ __forceinline__ unsigned query(unsigned row) const { return first + 8 * row; }
};

constexpr float LOG2_E = 0x1.715476p0f, LEAST_FACTOR = 1e-30f;   // the least, so that infinities stay

__device__ __forceinline__ Rows pack_queries(
    const float* __restrict__ Q, float scale, unsigned first, unsigned target, float* scales) {
  constexpr unsigned TURN_ROWS = 32 / ROW_LANES, TURNS = 16 / TURN_ROWS;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, chunk = lane % ROW_LANES;
  const float sign = scale < 0.0f ? -1.0f : 1.0f;
  float x[TURNS][CHUNK];
  bool all_fit = true;
#pragma unroll
  for (unsigned turn = 0; turn < TURNS; ++turn) {
    const unsigned query = first + warp * 16 + turn * TURN_ROWS + lane / ROW_LANES;
    load_chunk<Q_ALIGNED>(x[turn], Q + ROW_Q * query, chunk, query < QUERIES);
  }
#pragma unroll
  for (unsigned turn = 0; turn < TURNS; ++turn) {
    const unsigned row = warp * 16 + turn * TURN_ROWS + lane / ROW_LANES;
    bool is_fit;
    const unsigned largest = largest_of_row(x[turn], chunk, is_fit);
    const float multiplier = is_fit ? sign * scale_for(largest) : sign;
#pragma unroll
    for (unsigned i = 0; i < CHUNK; ++i) x[turn][i] = is_fit ? x[turn][i] * multiplier : 0.0f;
    all_fit = all_fit && is_fit;
    if (chunk < CHUNKS) {
      uint4 high, low;
      split_chunk(x[turn], high, low);
      const unsigned place = target + chunk / 8 * PANEL_Q_BYTES + row * 128 + (chunk % 8 ^ row % 8) * 16;
      st_shared_v4(place, high.x, high.y, high.z, high.w);
      st_shared_v4(place + PART_Q_BYTES, low.x, low.y, low.z, low.w);
    }
    if (chunk == 0) scales[row] = multiplier;
  }
  Rows rows;
  rows.first = first + warp * 16 + lane / 4;
  rows.are_unfit = __any_sync(0xffffffffu, !all_fit) != 0;
  __syncwarp();
#pragma unroll
  for (unsigned row = 0; row < 2; ++row) {
    rows.scaled_by[row] = scales[warp * 16 + lane / 4 + 8 * row];
    rows.factor[row] = fmaxf(fabsf(scale) * LOG2_E / fabsf(rows.scaled_by[row]), LEAST_FACTOR);
  }
  return rows;
}
