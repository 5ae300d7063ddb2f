// Y = X dequantised(W)^T on tensor cores, for up to 64 rows of X (problem.cuh has the layouts).
//
// Weights stand where a product has its 16 rows, X where it has its 8 columns, so that few rows of X waste little. A warp
// has 16 * ROWS rows of W and all of X, and takes every WARPS-th step of 128 k; in the end the block's warps add up what
// they have, in a fixed order. A lane loads 16 bytes of each of its rows at a time, UNROLL steps ahead of the products,
// with their scales and, of few rows, X, and turns them into numbers of 16 bits, exactly; sums of a group are multiplied by its scale in float32. Which
// terms of k stand at a place of a product is free: a lane takes those that it has loaded.
//   block (32 * WARPS), grid (ceil(n / (16 * ROWS))); with rows at launch also ceil(m / 16) along y
#include "hmma/element.cuh"
#include "problem.cuh"

#include "ptx/mma_sync_half.cuh"
#include "whole_numbers.cuh"
#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROWS
#define ROWS 1     // of fragments: 16 rows of W each
#endif
#ifndef UNROLL
#define UNROLL 2
#endif

constexpr unsigned STEP = 128, STEPS = K / STEP;
constexpr unsigned STEP_LOADS = STEP / (4 * LOAD);   // of a lane, of one row
// Fragments of 8 rows of X in a block. Where the launch tells the number of rows, blocks along y share them.
#ifdef M_AT_LAUNCH
constexpr unsigned COLUMNS = 2;
#define OF_BLOCK(row) (blockIdx.y * (8 * COLUMNS) + (row))
#else
constexpr unsigned COLUMNS = tw::ceil_div(M, 8u);
#define OF_BLOCK(row) (row)
#endif
constexpr unsigned QUADS = 4;                        // of a lane's terms of a step: eight each, 16 bytes of X
constexpr bool HOLDS_X = COLUMNS <= 2;               // a step's terms of X are read ahead with its weights
constexpr unsigned LANE_SUMS = ROWS * COLUMNS * 4;

typedef float Sums[ROWS][COLUMNS][4];

// A lane's eight terms of X beside a quad of weights, in the order that pairs of these have.
struct Terms {
  unsigned pair[4];

  // A row beyond the last is read as the last one: its sums go nowhere.
  __device__ __forceinline__ static uint4 read(const Half* X, unsigned column, unsigned step, unsigned quad) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, m = tw::min(OF_BLOCK(column * 8 + g), M - 1);
    const unsigned k = step * STEP + (quad / (LOAD / 8) * 4 + t) * LOAD + quad % (LOAD / 8) * 8;
    return __ldg(reinterpret_cast<const uint4*>(X + static_cast<size_t>(m) * K + k));
  }

  __device__ __forceinline__ void order(const uint4& x) {
    const uint4 pairs = as_pairs(x);
    pair[0] = pairs.x, pair[1] = pairs.y, pair[2] = pairs.z, pair[3] = pairs.w;
  }
};

// A lane's part of a step: of each fragment two rows of W, 8 apart, with their scales, and the terms of X.
struct Step {
  uint4 weights[ROWS][2][STEP_LOADS], x[HOLDS_X ? COLUMNS : 1][QUADS];
  Grid grid[ROWS][2];

  __device__ __forceinline__ void read(
      const Weight* W, const Half* S, const Half* X, unsigned first_row, unsigned step) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (unsigned i = 0; i < 2 * ROWS; ++i) {
      const unsigned row = tw::min(first_row + i / 2 * 16 + i % 2 * 8 + g, N - 1);
#pragma unroll
      for (unsigned j = 0; j < STEP_LOADS; ++j) {
        weights[i / 2][i % 2][j] = load_weights(W, row, (step * STEP_LOADS + j) * 4 + t);
      }
      grid[i / 2][i % 2] = Grid(S, row, step * STEP / GROUP);
    }
#pragma unroll
    for (unsigned i = 0; i < (HOLDS_X ? COLUMNS * QUADS : 0); ++i) {
      x[i / QUADS][i % QUADS] = Terms::read(X, i / QUADS, step, i % QUADS);
    }
  }

  // sum += the products of the step.
  __device__ __forceinline__ void multiply(Sums& sum, const Half* X, unsigned step) const {
    Sums part = {};
#pragma unroll
    for (unsigned quad = 0; quad < QUADS; ++quad) {
      Terms terms[COLUMNS];
#pragma unroll
      for (unsigned column = 0; column < COLUMNS; ++column) {
        terms[column].order(HOLDS_X ? x[HOLDS_X ? column : 0][quad] : Terms::read(X, column, step, quad));
      }
#pragma unroll
      for (unsigned i = 0; i < ROWS; ++i) {
        const float upper = grid[i][0].zero, lower = grid[i][1].zero;
#pragma unroll
        for (unsigned p = 0; p < 4; p += 2) {
          const unsigned a[4] = {
              pair_of(weights[i][0], quad, p, upper), pair_of(weights[i][1], quad, p, lower),
              pair_of(weights[i][0], quad, p + 1, upper), pair_of(weights[i][1], quad, p + 1, lower)};
#pragma unroll
          for (unsigned column = 0; column < COLUMNS; ++column) {
            float(&some)[4] = part[i][column];
            mma_m16n8k16<IS_BFLOAT16>(
                some[0], some[1], some[2], some[3], a, terms[column].pair[p], terms[column].pair[p + 1]);
          }
        }
      }
    }
#pragma unroll
    for (unsigned i = 0; i < LANE_SUMS; ++i) {
      const unsigned row = i / 4 / COLUMNS, column = i / 4 % COLUMNS;
      sum[row][column][i % 4] += grid[row][i % 4 / 2].scale * part[row][column][i % 4];
    }
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
linear_quantized(
    const Half* __restrict__ X, const Weight* __restrict__ W, const Half* __restrict__ S, Half* __restrict__ Y
    SIZE_PARAMETER) {
  extern __shared__ float shared[];   // of each warp, of each of a lane's sums, the lanes
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = blockIdx.x * (16 * ROWS);
  Sums sum = {};
  Step held[UNROLL];
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    if (warp + u * WARPS < STEPS) held[u].read(W, S, X, first_row, warp + u * WARPS);
  }
#pragma unroll 1
  for (unsigned step = warp; step < STEPS; step += WARPS * UNROLL) {
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      const unsigned now = step + u * WARPS, next = now + UNROLL * WARPS;
      if (now >= STEPS) break;
      held[u].multiply(sum, X, now);
      if (next < STEPS) held[u].read(W, S, X, first_row, next);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < LANE_SUMS; ++i) {
    shared[(warp * LANE_SUMS + i) * 32 + lane] = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
  }
  __syncthreads();
  // Neighbouring threads write neighbouring rows of W, which are neighbours in Y.
  for (unsigned at = threadIdx.x; at < LANE_SUMS * 32; at += 32 * WARPS) {
    const unsigned row = at % (16 * ROWS), m = at / (16 * ROWS), n = first_row + row;
    if (OF_BLOCK(m) >= M || n >= N) continue;
    const unsigned number = (row / 16 * COLUMNS + m / 8) * 4 + row % 16 / 8 * 2 + m % 2;
    const unsigned from = number * 32 + row % 8 * 4 + m % 8 / 2;
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < WARPS; ++i) total += shared[i * (LANE_SUMS * 32) + from] / UNIT;
    Y[static_cast<size_t>(OF_BLOCK(m)) * N + n] = Half(total);
  }
}
