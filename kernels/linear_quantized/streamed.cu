// Y = X dequantised(W)^T on tensor cores, for up to 64 rows of X, W at the speed of memory (problem.cuh has the layouts).
//
// Weights stand where a product has its 16 rows, X where it has its 8 columns, so that few rows of X waste little. Which
// terms of k stand at a place of a product is free: a lane takes 16 bytes that lie side by side. k is shared by SPLIT blocks of
// a cluster and by WARPS_K warps of each. A block lays its part of X out in shared memory once, as products take it, and
// goes through ROUNDS tiles of W, of WARPS_N * ROWS fragments of 16 rows; as many of these as give every multiprocessor one
// tile are best. A warp has a ring of its own in shared memory, of DEPTH stages of UNROLL steps of 128 k, which its lanes
// fill and read without waiting for other warps. Few stages are best too: with much under way, what is multiplied first
// comes late. Sums of a group are multiplied by its scale in float32; those of the warps are added up in a fixed order.
//   block (32 * WARPS_K * WARPS_N), grid (ceil(tiles / ROUNDS) * SPLIT, DIVIDE; with rows at launch as many as they take)
#include "hmma/element.cuh"
#include "problem.cuh"

#include "common/overlap.cuh"
#include "ptx/mma_sync_half.cuh"
#include "streamed_ring.cuh"
#include "streamed_sums.cuh"
#include "streamed_terms.cuh"
#include "whole_numbers.cuh"

// sum += the products of a step: of the lane's weights with its terms from `x` on.
__device__ __forceinline__ void multiply(
    Sums& sum, const uint4* own, const float (&scale)[ROWS][2], const float (&zero)[ROWS][2], const uint4* x) {
  unsigned a[ROWS][2 * QUADS][4];
#pragma unroll
  for (unsigned i = 0; i < ROWS; ++i) {
    uint4 weights[2][STEP_LOADS];
#pragma unroll
    for (unsigned j = 0; j < 2 * STEP_LOADS; ++j) weights[j / STEP_LOADS][j % STEP_LOADS] = own[(i * 2 * STEP_LOADS + j) * 32];
#pragma unroll
    for (unsigned at = 0; at < 2 * QUADS * 4; ++at) {
      a[i][at / 4][at % 4] = pair_of(weights[at % 2], at / 8, at / 4 % 2 * 2 + at % 4 / 2, zero[i][at % 2]);
    }
  }
#pragma unroll
  for (unsigned column = 0; column < COLUMNS; ++column) {
    float some[CHAINS][ROWS][4] = {};
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) {
      const uint4 terms = x[quad * QUAD_PITCH + column * 32];
#pragma unroll
      for (unsigned i = 0; i < ROWS; ++i) {
        float(&upper)[4] = some[0][i], (&lower)[4] = some[CHAINS - 1][i];
        mma_m16n8k16<IS_BFLOAT16>(upper[0], upper[1], upper[2], upper[3], a[i][2 * quad], terms.x, terms.y);
        mma_m16n8k16<IS_BFLOAT16>(lower[0], lower[1], lower[2], lower[3], a[i][2 * quad + 1], terms.z, terms.w);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < 4 * ROWS; ++i) {
      const float one = some[0][i / 4][i % 4], whole = CHAINS == 2 ? one + some[CHAINS - 1][i / 4][i % 4] : one;
      sum[i / 4][column][i % 4] += scale[i / 4][i % 4 / 2] * whole;
    }
  }
}

// sum += the products of the stage's steps, the first of which is `step`, in the tile whose rows begin with `row`.
__device__ __forceinline__ void multiply_stage(Sums& sum, const uint4* stage, unsigned row, unsigned step, const uint4* x) {
  const unsigned lane = threadIdx.x % 32;
  Line<Half, SCALE_BYTES / 2> scales[2 * ROWS];
#pragma unroll
  for (unsigned i = 0; i < 2 * ROWS; ++i) {
    scales[i] = reinterpret_cast<const Line<Half, SCALE_BYTES / 2>*>(stage + WEIGHT_BYTES / 16)[i * 8 + lane / 4];
    if (SCALES == 1 && Source::scale_at(tw::min(row + i * 8 + lane / 4, N - 1), step) % 2) scales[i].lane[0] = scales[i].lane[1];
  }
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    float scale[ROWS][2], zero[ROWS][2];
#pragma unroll
    for (unsigned i = 0; i < 2 * ROWS; ++i) {
      const unsigned at = GROUPS == 1 ? 0 : u * (1 + ZEROS);
      scale[i / 2][i % 2] = scales[i].lane[at];
      zero[i / 2][i % 2] = ZEROS ? static_cast<float>(scales[i].lane[at + ZEROS]) : 8.0f;
    }
    multiply(sum, stage + u * STEP_WEIGHTS + lane, scale, zero, x + u * (QUADS * QUAD_PITCH));
  }
}

#if SPLIT > 1
#define IN_CLUSTERS __cluster_dims__(SPLIT, 1, 1)
#else
#define IN_CLUSTERS
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 1) IN_CLUSTERS linear_quantized(
    const Half* __restrict__ X, const Weight* __restrict__ W, const Half* __restrict__ S, Half* __restrict__ Y
    SIZE_PARAMETER) {
  extern __shared__ uint4 shared[];   // X, sums of two tiles or those of the only one in the rings' place, rings
  float* const sums = reinterpret_cast<float*>(shared + X_QUADS);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = SPLIT > 1 ? cluster_ctarank() : 0;
  const unsigned part = rank * WARPS_K + warp % WARPS_K, begin = rank * STEPS / SPLIT;
  await_last_launch();
  const unsigned first = part * STEPS / PARTS, end = (part + 1) * STEPS / PARTS, first_row = warp / WARPS_K * (16 * ROWS);
  uint4* const stages = shared + X_QUADS + (IN_RINGS ? 0 : BUFFERS * BUFFER / 4) + warp * (DEPTH * STAGE_BYTES / 16);
  const unsigned memory = shared_address(stages);
  if constexpr (SPLIT > 1) cluster_arrive();   // that it is there: others put sums into its memory
  Terms terms(X, begin, (rank + 1) * STEPS / SPLIT - begin);
  terms.load(warp);   // ahead of the weights, which wait for them
  Source source(W, S, first_row, first, end);
#pragma unroll 1
  for (unsigned i = 0; i < DEPTH - 1; ++i) source.copy(memory + i * STAGE_BYTES);
  terms.finish(shared);
  if constexpr (SPLIT > 1) cluster_wait();
  __syncthreads();
  const uint4* const x = shared + tw::min(lane / 4, X_ROWS - 1) * 4 + lane % 4;
  unsigned tile = blockIdx.x / SPLIT, buffer = 0, slot = 0, before = DEPTH - 1;   // stages
#pragma unroll 1
  for (; tile < TILES; tile += STRIDE) {
    Sums sum = {};
#pragma unroll 1
    for (unsigned step = first; step < end; step += UNROLL) {
      cp_async_wait_group<DEPTH - 2>();
      __syncwarp();
      source.copy(memory + before * STAGE_BYTES);
      multiply_stage(sum, stages + slot * (STAGE_BYTES / 16), tile * TILE_N + first_row, step, x + (step - begin) * (QUADS * QUAD_PITCH));
      before = slot;
      if (++slot == DEPTH) slot = 0;
    }
    if (ROUNDS > 1 && tile >= STRIDE) {
      wait();
      finish(sums + (buffer ^ 1) * BUFFER, Y, tile - STRIDE, rank);
    }
    if (IN_RINGS) __syncthreads();   // they are read to their end
    put_sums(sums + buffer * BUFFER, sum, part);
    arrive();
    if (BUFFERS == 2) buffer ^= 1;
  }
  wait();
  finish(sums + (BUFFERS == 2 ? buffer ^ 1 : 0) * BUFFER, Y, tile - STRIDE, rank);
}
