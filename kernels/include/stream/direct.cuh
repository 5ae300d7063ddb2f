// The variant `streamed_half` as a whole: few rows of A times a B that is read once, straight into registers.
#pragma once
#ifndef SHAPE_M
#define SHAPE_M 16      // rows of A: tokens, 64 at most
#define SHAPE_N 4096    // columns of op(B)
#define SHAPE_K 4096    // length of each inner product
#define TRANS_B 1
#endif
#include "hmma/element.cuh"   // before all that has REAL

#include "common/integers.cuh"
#include "common/overlap.cuh"
#include "common/product.cuh"
#include "ptx/mma_sync_half.cuh"

#ifndef WARPS
#define WARPS 8      // of a block, which share k
#endif
#ifndef ROWS
#define ROWS 1       // sixteens of columns of C that a block computes
#endif
#ifndef UNROLL
#define UNROLL 2     // steps of 64 k that a warp has under way
#endif
#ifndef PAIRED
#define PAIRED 0     // 1: B has rows of two matrices, N each, one behind the other; C is made of both products
#endif
static_assert(!TRANS_A && TRANS_B, "lines lie along k");
static_assert(DIVISOR_A % 8 == 0 && DIVISOR_B % 8 == 0, "lines begin at multiples of 16 bytes");

constexpr unsigned FACTORS = 1 + PAIRED;                               // matrices of B
constexpr unsigned FRAGMENTS = FACTORS * ROWS, COLUMNS = tw::ceil_div(M, 8u);   // of products: 16 lines of B, 8 rows of A
constexpr unsigned STEP_K = 64, STEP_LOADS = 2;                        // 128 bytes of a line: of a lane 16 bytes, twice
constexpr unsigned STEPS = tw::ceil_div(K, STEP_K);
constexpr unsigned TILE_N = 16 * ROWS, THREADS = 32 * WARPS, LANE_SUMS = FRAGMENTS * COLUMNS * 4;

typedef float Sums[FRAGMENTS][COLUMNS][4];

// What a lane has of a step: of each fragment of B two lines, 8 apart, of each of A one row.
struct Step {
  uint4 b[FRAGMENTS][2][STEP_LOADS], a[COLUMNS][STEP_LOADS];

  __device__ __forceinline__ static uint4 line(const Half* line, unsigned k, bool is_read_once) {
    if (K % STEP_K != 0 && k >= K) return make_uint4(0, 0, 0, 0);
    const uint4* const source = reinterpret_cast<const uint4*>(line + k);
    return is_read_once ? __ldcs(source) : __ldg(source);
  }

  // What is behind the last line is the last again.
  __device__ __forceinline__ void read(const Half* A, const Half* B, unsigned first_column, unsigned step) {
    const unsigned g = threadIdx.x % 32 / 4, k = step * STEP_K + threadIdx.x % 4 * 8;
#pragma unroll
    for (unsigned i = 0; i < 2 * FRAGMENTS; ++i) {
      const unsigned column = tw::min(first_column + i / 2 % ROWS * 16 + i % 2 * 8 + g, N - 1) + i / 2 / ROWS * N;
#pragma unroll
      for (unsigned j = 0; j < STEP_LOADS; ++j) {
        b[i / 2][i % 2][j] = line(B + static_cast<size_t>(column) * LDB, k + j * 32, true);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < COLUMNS; ++i) {
#pragma unroll
      for (unsigned j = 0; j < STEP_LOADS; ++j) {
        a[i][j] = line(A + static_cast<size_t>(tw::min(i * 8 + g, M - 1)) * LDA, k + j * 32, false);
      }
    }
  }

  // sum += the products of the step. Which terms stand at a place of a product is free: a lane takes those that it has.
  __device__ __forceinline__ void multiply(Sums& sum) const {
#pragma unroll
    for (unsigned j = 0; j < STEP_LOADS; ++j) {
#pragma unroll
      for (unsigned i = 0; i < FRAGMENTS; ++i) {
        const uint4 upper = b[i][0][j], lower = b[i][1][j];
        const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (unsigned column = 0; column < COLUMNS; ++column) {
          float(&some)[4] = sum[i][column];
          const uint4 row = a[column][j];
          mma_m16n8k16<IS_BFLOAT16>(some[0], some[1], some[2], some[3], first, row.x, row.y);
          mma_m16n8k16<IS_BFLOAT16>(some[0], some[1], some[2], some[3], second, row.z, row.w);
        }
      }
    }
  }
};

// By a warp: the products of its steps, every WARPS-th. Each is read UNROLL of them ahead.
__device__ __forceinline__ void multiply_steps(Sums& sum, const Half* A, const Half* B, unsigned first_column) {
  Step held[UNROLL];
  const unsigned warp = threadIdx.x / 32;
#pragma unroll
  for (unsigned u = 0; u < UNROLL; ++u) {
    if (warp + u * WARPS < STEPS) held[u].read(A, B, first_column, warp + u * WARPS);
  }
#pragma unroll 1
  for (unsigned step = warp; step < STEPS; step += UNROLL * WARPS) {
#pragma unroll
    for (unsigned u = 0; u < UNROLL; ++u) {
      if (step + u * WARPS >= STEPS) break;
      held[u].multiply(sum);
      const unsigned next = step + (u + UNROLL) * WARPS;
      if (next < STEPS) held[u].read(A, B, first_column, next);
    }
  }
}

// The sum of the warps' in shared memory, in a fixed order, of a row of A and a line of the block.
__device__ __forceinline__ float add_up(const float* shared, unsigned row, unsigned line) {
  const unsigned number = (line / 16 * COLUMNS + row / 8) * 4 + line % 16 / 8 * 2 + row % 2;
  const unsigned from = number * 32 + line % 8 * 4 + row % 8 / 2;
  float total = 0;
#pragma unroll
  for (unsigned warp = 0; warp < WARPS; ++warp) total += shared[warp * (LANE_SUMS * 32) + from];
  return total;
}

// All of the launch.
template <class EpilogueOf>
__device__ __forceinline__ void stream_direct(
    const EpilogueOf& epilogue_of, const Half* __restrict__ A, const Half* __restrict__ B) {
  extern __shared__ float shared[];   // of each warp, of each of a lane's sums, the lanes
  constexpr unsigned TILES_N = tw::ceil_div(N, TILE_N);
  const unsigned matrix = BATCH == 1 ? 0 : blockIdx.x / TILES_N;
  const unsigned first_column = (BATCH == 1 ? blockIdx.x : blockIdx.x % TILES_N) * TILE_N;
  begin_overlapped();
  Sums sum = {};
  multiply_steps(sum, A + matrix * STRIDE_A, B + matrix * STRIDE_B, first_column);
#pragma unroll
  for (unsigned i = 0; i < LANE_SUMS; ++i) {
    shared[(threadIdx.x / 32 * LANE_SUMS + i) * 32 + threadIdx.x % 32] = sum[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4];
  }
  __syncthreads();
  const auto epilogue = epilogue_of(matrix);
  for (unsigned at = threadIdx.x; at < M * TILE_N; at += THREADS) {
    const unsigned row = at / TILE_N, line = at % TILE_N;
    if (N % TILE_N != 0 && first_column + line >= N) continue;
    Pack<1> total{add_up(shared, row, line)};
    if constexpr (PAIRED) total.lane[0] = epilogue.combined(total.lane[0], add_up(shared, row, TILE_N + line));
    epilogue.template write<1>(row, first_column + line, total);
  }
}
